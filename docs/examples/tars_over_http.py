"""Read WebDataset tars over HTTP or from S3, in blocks, through a local copy.

python tars_over_http.py 'https://example.com/train-{0000..0099}.tar' --local-cache /scratch/penstock
"""

import argparse

from penstock.loaders import create_loader

parser = argparse.ArgumentParser()
parser.add_argument("tars", help="a pattern of paths or URLs")
parser.add_argument("--label", default="cls", help="the member with the label, or json:FIELD")
parser.add_argument("--local-cache", help="folder that keeps what came, for data by URL")
parser.add_argument("--batch-size", type=int, default=256)
args = parser.parse_args()

remote = {"local_cache": args.local_cache} if args.local_cache else {}
loader = create_loader(
    args.tars, label=args.label, shuffle="blocks", batch_size=args.batch_size, drop_last=False, **remote
)
for _ in loader:
    ...
stats = loader.stats()
print(f"{stats.images} images, waited {stats.wait_s:.1f} s")
