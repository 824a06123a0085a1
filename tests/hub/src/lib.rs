//! A Hugging Face hub for tests, on this machine, hostile on demand.
