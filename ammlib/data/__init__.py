"""Names to arrays (datasets), where their bytes come from (sources), and batches on the training device (batches)."""
