"""Data sets in Arrow and Parquet files, including Hugging Face data sets."""
