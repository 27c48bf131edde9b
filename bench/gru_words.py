#!/usr/bin/env python3
"""How many words a quantized grapheme-to-phoneme network spells as a dictionary does.

    gru_words.py FOLDER DICTIONARY [PRESET ...]    w8a8, w8h16, w8a16, w16a16; none: all of them

FOLDER: g2p_en's encoder and decoder GRU as raw arrays with a manifest.json (the folder g2p of the
test data, see docs/testing.md). DICTIONARY: a text of lines "word PHONEME ...", as
cmudict-en-us.dict of Debian's pocketsphinx-en-us; any pronunciation of a word counts as right,
stress counts where the dictionary marks it. Needs numpy and the Python package qk.

Both GRUs run quantized; embeddings and the last layer in float. Calibration: the folder's 400
words, the decoder on its own float outputs. Prints a line a preset, and one of the float network.
"""
import json
import pathlib
import sys

import numpy as np
import qk

START, END, LONGEST = 2, 3, 20


class Data:
    def __init__(self, folder):
        self.manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        for tensor in self.manifest["tensors"]:
            array = np.fromfile(folder / tensor["file"], dtype=np.dtype(tensor["dtype"]))
            setattr(self, tensor["name"], array.reshape(tensor["shape"]))

    def letters(self, word):
        ids = [self.manifest["graphemes"].index(letter) for letter in word] + [END - 1]
        return self.enc_emb[ids]

    def phoneme(self, h):
        return int(np.argmax(self.fc_w @ h + self.fc_b))

    def gru(self, side, **options):
        parts = (getattr(self, f"{side}_{part}") for part in ("w_ih", "w_hh", "b_ih", "b_hh"))
        return qk.GRU(*parts, **options)


def read_dictionary(path):
    """{word: its pronunciations}; "word(2)" is another one of "word"."""
    words = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        word, *phonemes = line.split()
        words.setdefault(word.split("(")[0], []).append(phonemes)
    return words


def spell(data, h, step):
    """Phonemes until the end mark; step(x, h) is the decoder's."""
    ids, phoneme = [], START
    while len(ids) < LONGEST:
        h = step(data.dec_emb[phoneme], h)
        phoneme = data.phoneme(h)
        if phoneme == END:
            break
        ids.append(phoneme)
    return ids


def float_network(data):
    """word -> phonemes, and the decoder's first state and inputs for calibration."""
    encoder, decoder = data.gru("enc"), data.gru("dec")

    def run(word):
        h = encoder.run_float(data.letters(word))[-1]
        ids = spell(data, h, lambda x, state: decoder.run_float(x[None], state[None])[-1])
        return ids, h, data.dec_emb[[START, *ids][:LONGEST]]
    return run


def quantized_network(data, float_run, preset):
    options = ("uniform_tables", "headroom") if preset == "w16a16" else ()
    encoder, decoder = (data.gru(side, preset=preset, options=options) for side in ("enc", "dec"))
    for word in data.manifest["calib_words"]:
        _, h, inputs = float_run(word)
        encoder.calibrate(data.letters(word))
        decoder.calibrate(inputs, h[None])
    encoder.freeze()
    decoder.freeze()
    state = decoder.stream()

    def run(word):
        with encoder.stream() as first:
            first(data.letters(word))
            state.write(first.read())
        return spell(data, None, lambda x, _: state(x[None])[-1])
    return run


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    data = Data(pathlib.Path(sys.argv[1]))
    dictionary = read_dictionary(pathlib.Path(sys.argv[2]))
    stressed = any(phoneme[-1].isdigit() for phoneme in dictionary["stress"][0])
    names, words = data.manifest["phonemes"], data.manifest["test_words"]
    float_run = float_network(data)
    floats = [float_run(word)[0] for word in words]

    def report(name, ids):
        known = [(named(spelling), dictionary[word]) for word, spelling in zip(words, ids)
                 if word in dictionary]
        right = sum(spelling in right_ones for spelling, right_ones in known)
        same = sum(a == b for a, b in zip(ids, floats))
        print(f"{name:7s} {right} of {len(known)} words right ({100 * right / len(known):.1f}%), "
              f"{same} of {len(words)} as in float", flush=True)

    def named(ids):
        return [names[i] if stressed else names[i].rstrip("012") for i in ids]

    report("float", floats)
    for preset in sys.argv[3:] or ["w8a8", "w8h16", "w8a16", "w16a16"]:
        run = quantized_network(data, float_run, preset)
        report(preset, [run(word) for word in words])


if __name__ == "__main__":
    main()
