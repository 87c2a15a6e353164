"""Made ``root-0.2.tar.gz`` with the code of lakequeue 0.2; its lock files were removed."""

import pyarrow as pa

from lakequeue import LakeQueue, RedrivePolicy, SendEntry

FOR_LONG = {"message_retention_period": 14 * 86400}
lq = LakeQueue("root")
lq.create_queue("dead", **FOR_LONG)
orders = lq.create_queue(
    "orders", shards=2, redrive_policy=RedrivePolicy("dead", 1), tags={"team": "a"}, **FOR_LONG
)
kept = lq.create_queue("kept", rewind_range=14 * 86400, **FOR_LONG)
letters = lq.create_queue("letters.fifo", fifo=True, content_based_deduplication=True, **FOR_LONG)
orders.send("moved")
for _ in range(2):
    orders.receive(visibility_timeout=0)
orders.send_batch([SendEntry(f"order {n}", attributes={"n": n}) for n in range(5)])
orders.send_arrow(pa.table({"body": [f"bulk {n}" for n in range(20)]}), send_id="import")
kept.send_batch([SendEntry(f"kept {n}") for n in range(4)])
kept.delete_batch(kept.receive(2))
for n in range(4):
    letters.send(f"letter {n}", group_id="ab"[n % 2])
lq.create_queue("gone").send("x")
lq.delete_queue("gone")
lq.compact()
