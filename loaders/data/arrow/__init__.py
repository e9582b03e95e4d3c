"""Data sets in Arrow and Parquet files, Hugging Face data sets among them."""
