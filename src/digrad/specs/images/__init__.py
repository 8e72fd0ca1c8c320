"""Trainings of image classifiers: models, data of the agents, workers, and searches of step sizes."""
