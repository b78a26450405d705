"""What Spark reads of logs, beside the same batches from memory."""
