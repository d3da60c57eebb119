"""The parts of ``memmodel demo``: from a public time series to a served, plotted forecaster."""
