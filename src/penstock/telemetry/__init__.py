"""What operators see: metrics, logs with correlation ids, traces."""
