"""Reads with Hugging Face's clients from the hub at HF_ENDPOINT.

`hub_reader.py make FOLDER` writes the files of two data sets with the same texts: lines.jsonl and table.parquet.
`hub_reader.py read` prints, as JSON, what huggingface_hub and datasets find. `make datasets` runs both.
"""

import hashlib
import json
import sys
from pathlib import Path

LINES, TABLE = "org/lines", "org/table"


def texts():
    return [f"Act {act}: wörds and a line\nmore " * (act % 7) for act in range(1000)]


def make(folder):
    import pyarrow as arrow
    from pyarrow import parquet

    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts())
    (folder / "lines.jsonl").write_text(rows, encoding="utf-8")
    parquet.write_table(arrow.table({"text": texts()}), folder / "table.parquet", row_group_size=300)


def read():
    from datasets import load_dataset
    from huggingface_hub import HfFileSystem, hf_hub_download, list_repo_files

    found = {}
    for repo, pattern in [(LINES, "**/*.jsonl"), (TABLE, "data/*.parquet")]:
        files = list_repo_files(repo, repo_type="dataset")
        downloads = {path: hf_hub_download(repo, path, repo_type="dataset") for path in files}
        found[repo] = {
            "digests": {path: hashlib.sha256(Path(file).read_bytes()).hexdigest() for path, file in downloads.items()},
            "matching": HfFileSystem().glob(f"datasets/{repo}/{pattern}"),
            "texts": [row["text"] for row in load_dataset(repo, split="train", streaming=True)],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    make(Path(sys.argv[2])) if sys.argv[1] == "make" else read()
