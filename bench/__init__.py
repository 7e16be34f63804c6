"""How fast Penstock is, as ratios measured side by side in one run."""
