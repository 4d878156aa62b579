"""What W&B wrote offline, read without W&B's own reader."""

import json
import struct
import time


def records(path):
    """Yield the protobuf records of a .wandb file: blocks of 32 KiB in LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def whole(path):
    """Return the records of a run that has ended: wandb's own process writes the file."""
    until = time.monotonic() + 30
    while True:
        found = list(records(path))
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        assert time.monotonic() < until, f"{path} does not end"
        time.sleep(0.1)


def runs_in(place):
    """Return each offline run as a dict."""
    found = []
    for file in sorted(place.glob("wandb/offline-run-*/*.wandb")):
        run = {"summary": {}, "config": {}, "history": [], "artifacts": [], "folder": file.parent}
        for record in whole(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run |= {"name": record.run.display_name, "project": record.run.project}
                run |= {"group": record.run.run_group, "tags": list(record.run.tags)}
                run |= {"id": record.run.run_id, "entity": record.run.entity}
                for item in record.run.config.update:
                    run["config"][item.key] = json.loads(item.value_json)
            elif kind == "config":
                for item in record.config.update:
                    run["config"][item.key] = json.loads(item.value_json)
            elif kind == "summary":
                for item in record.summary.update:
                    key = item.key or "/".join(item.nested_key)
                    run["summary"][key] = json.loads(item.value_json)
            elif kind == "history":
                items = record.history.item
                run["history"].append(
                    {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
                )
            elif kind == "artifact" and record.artifact.type == "patchbench-result":
                run["artifacts"].append(record.artifact)
        found.append(run)
    return found
