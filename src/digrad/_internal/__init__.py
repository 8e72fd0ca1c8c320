"""Support modules without public names: files, hashing, cores, plug-ins, tables."""
