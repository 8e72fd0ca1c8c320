"""Support modules that are nobody's API: files, hashing, cores, plug-ins, tables."""
