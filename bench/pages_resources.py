"""The tables of docs/measurements/cuda-resources.md: what ptxas gives each kernel."""


def numbers(cell):
    """(registers, bytes spilled, bytes of stack, bytes of shared memory); registers of a function
    that is called: None."""
    return [None if word == "-" else int(word) for word in cell.split("/")]


def families(rows):
    """{(file, kernel without its template's arguments): its rows}."""
    found = {}
    for row in rows:
        found.setdefault((row[0], row[1].split("<")[0]), []).append(row)
    return found


def summed_up(cells):
    """One cell for the instances of a kernel: registers, how many spill, shared memory."""
    known = [numbers(cell) for cell in cells if cell]
    if not known or known[0][0] is None:
        return ""
    registers = sorted(row[0] for row in known)
    spill = [row[1] for row in known if row[1] > 0]
    shared = max(row[3] for row in known)
    text = str(registers[0])
    if registers[-1] != registers[0]:
        text += f" to {registers[-1]}"
    if spill:
        text += f", {len(spill)} spill up to {max(spill)}"
    return text + (f", {shared} shared" if shared else "")


def kernels(header, rows):
    """A row for each kernel, its instances summed up."""
    yield [*header[:2], "instances", *header[2:]]
    for (file, kernel), found in families(rows).items():
        if numbers(next(filter(None, found[0][2:])))[0] is not None:
            yield [file, f"`{kernel}`", str(len(found)),
                   *(summed_up([row[at] for row in found]) for at in range(2, len(header)))]


def spills(header, rows):
    """A row for each instance that spills or whose called functions do: the bytes."""
    yield header
    for row in rows:
        spilled = [numbers(cell)[1] if cell else 0 for cell in row[2:]]
        if any(spilled):
            yield [row[0], f"`{row[1]}`", *(str(number or "") for number in spilled)]


TABLES = {"kernels": kernels, "spills": spills}
