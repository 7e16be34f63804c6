"""What follows from values alone: graphs, decisions, folds, differences, drawings."""
