"""The paper's own proof, as printed: its constants, its largest step and its rows, kept for comparison."""
