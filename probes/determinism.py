"""With fixed seeds, two runs of the same training agree bit for bit."""

# /// probe
# summary = "with fixed seeds two runs agree bit for bit, operation by operation"
# timeout = 240
# ///

import _support as support


def operations(torch):
    functional = torch.nn.functional
    image, kernel = torch.randn(4, 8, 16, 16), torch.randn(16, 8, 3, 3)
    query = torch.randn(2, 4, 32, 16)
    index = torch.randint(0, 32, (256,))
    return {
        "matmul": lambda: torch.randn(64, 64) @ torch.randn(64, 64),
        "conv2d": lambda: functional.conv2d(image, kernel, padding=1),
        "dropout": lambda: functional.dropout(torch.ones(4096), 0.5),
        "index_add": lambda: torch.zeros(32, 8).index_add_(0, index, torch.randn(256, 8)),
        "attention": lambda: functional.scaled_dot_product_attention(query, query, query),
        "cumsum": lambda: torch.randn(4096).cumsum(0),
        "sum": lambda: torch.randn(1 << 16).sum(),
        "sort": lambda: torch.randn(4096).sort().values,
        "multinomial": lambda: torch.multinomial(torch.rand(64), 32),
        "training": lambda: train(torch),
    }


def train(torch):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def run(torch):
    results = {}
    torch.manual_seed(1234)
    for name, operation in operations(torch).items():
        torch.manual_seed(1234)
        results[name] = operation()
    return results


def check():
    torch = support.import_torch()
    torch.use_deterministic_algorithms(True)
    first, second = run(torch), run(torch)
    support.METRICS["operations"] = sorted(first)
    differing = [name for name in first if not torch.equal(first[name], second[name])]
    if differing:
        support.fail(
            "not_deterministic",
            f"two runs with the same seeds differ in: {', '.join(differing)}",
            "something draws from torch's generator between the runs, or replaces these operations",
            differing=differing,
        )
    odd = [name for name, value in first.items() if not torch.isfinite(value.double()).all()]
    if odd:
        support.fail("not_finite", f"operations give inf or nan: {', '.join(odd)}")
    return f"{len(first)} operations agree bit for bit in two runs"


if __name__ == "__main__":
    support.main(check)
