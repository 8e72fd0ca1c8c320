"""What every engine needs, once: verbs, the method of iteration k, averages, traffic, checks at the door."""
