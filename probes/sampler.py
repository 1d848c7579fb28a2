"""DistributedSampler: the ranks' shares are disjoint, complete, and reshuffled by set_epoch."""

# /// probe
# summary = "DistributedSampler gives disjoint, complete shares, and new ones each epoch"
# timeout = 300
# ///

import _support as support

SAMPLES, RANKS = 64, 4


def check():
    support.import_torch()
    from torch.utils.data import DataLoader, DistributedSampler

    data = list(range(SAMPLES))
    epochs = []
    for epoch in range(3):
        shares = []
        for rank in range(RANKS):
            sampler = DistributedSampler(data, num_replicas=RANKS, rank=rank, seed=3)
            sampler.set_epoch(epoch)
            batches = DataLoader(data, batch_size=4, sampler=sampler)
            shares.append([int(item) for batch in batches for item in batch])
        together(shares, epoch)
        epochs.append(shares)
    if any(epochs[0] == other for other in epochs[1:]):
        support.fail(
            "not_reshuffled",
            "set_epoch does not change the order: every epoch has the same order",
            "another sampler replaces torch's: make it honour set_epoch",
        )
    padded(DistributedSampler)
    return f"{RANKS} ranks share {SAMPLES} samples, disjoint and complete, in 3 different epochs"


def together(shares, epoch):
    seen = sorted(item for share in shares for item in share)
    if len({len(share) for share in shares}) != 1:
        support.fail(
            "unequal_shares",
            f"epoch {epoch}: the ranks have {[len(share) for share in shares]} samples, so that "
            "some would wait forever",
        )
    missing = sorted(set(range(SAMPLES)) - set(seen))
    if missing:
        support.fail("not_complete", f"epoch {epoch}: no rank has the samples {missing[:5]}")
    if len(seen) != SAMPLES:
        support.fail(
            "not_disjoint", f"epoch {epoch}: {len(seen) - SAMPLES} samples are listed twice"
        )


def padded(sampler_class):
    """A count that does not divide: equal shares, by repeating as few samples as possible."""
    uneven = list(range(SAMPLES + 1))
    shares = [
        list(sampler_class(uneven, num_replicas=RANKS, rank=rank, shuffle=False))
        for rank in range(RANKS)
    ]
    if len({len(share) for share in shares}) != 1 or set().union(*shares) != set(uneven):
        support.fail(
            "uneven_wrong",
            f"{SAMPLES + 1} samples on {RANKS} ranks: shares of {[len(s) for s in shares]}",
        )


if __name__ == "__main__":
    support.main(check)
