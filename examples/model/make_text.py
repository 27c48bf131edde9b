#!/usr/bin/env python3
"""Writes the text that the small model of the examples is trained and measured on.

    python make_text.py [STORIES] [SEED]      stories to stdout, 5 of seed 1 without arguments

A story is a few facts about people, then questions, one a line. Whatever an answer needs stands in
the facts, so it can be checked, and people's names are made up for each story:

    Tam is in the garden. Mira has 4 red pens. Where is Tam? Tam is in the garden.
    How many pens does Mira have? Mira has 4 pens.

Nothing but the seed decides what is written, with any version of Python.
"""
import random
import sys

STARTS = "B Br D Dr F G H J K L M N P R S St T Tr V Z".split()
VOWELS = "a e i o u".split()
MIDDLES = "b d k l ll m n nn r s t v".split()
ENDS = ["", "", "l", "m", "n", "r", "s"]
PLACES = "attic barn cellar forest garden harbor kitchen library market museum park shop".split()
COLORS = "black blue brown green gray pink red white".split()
THINGS = "bags balls boats books boxes coins cups hats keys lamps maps pens".split()
FOODS = "apples bread cheese figs honey nuts onions pears plums rice soup tea".split()
KINDS = ("where", "who is in", "what", "who has", "count", "color", "likes", "who likes", "sum",
         "unknown")
HARD = ("what", "who has", "color")  # what stands before the word that tells which is meant


class Dice:
    """Draws by Random.random() alone, whose numbers Python promises to keep."""

    def __init__(self, seed):
        self.uniform = random.Random(seed).random

    def below(self, count):
        return int(self.uniform() * count)

    def pick(self, items):
        return items[self.below(len(items))]

    def some(self, items, count):
        """count different ones, in a random order."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]


def name(dice):
    first = dice.pick(STARTS) + dice.pick(VOWELS)
    if dice.below(3):
        first += dice.pick(MIDDLES) + dice.pick(VOWELS)
    return first + dice.pick(ENDS)


def names(dice, count):
    found = []
    while len(found) < count:
        new = name(dice)
        if len(new) > 2 and new not in found:
            found.append(new)
    return found


def facts(dice):
    """(kind, person, what) of 3 or 4 facts, and a name of whom nothing is told."""
    people = names(dice, 4)
    stranger, people = people[0], people[1:]
    kinds = ["place", "things", "things"] + dice.some(["place", "things", "food"], dice.below(2))
    if dice.below(2):
        kinds[dice.below(3)] = "food"
    places, things, colors, foods = (dice.some(list_, len(kinds))
                                     for list_ in (PLACES, THINGS, COLORS, FOODS))
    told = []
    for i, kind in enumerate(dice.some(kinds, len(kinds))):
        # Nobody is told the same kind of thing twice.
        free = [p for p in people if all((p, kind) != (other, k) for k, other, _ in told)]
        what = {"place": places[i], "food": foods[i],
                "things": (2 + dice.below(8), colors[i], things[i])}[kind]
        told.append((kind, dice.pick(free), what))
    return told, stranger


def sentence(kind, person, what):
    if kind == "place":
        return f"{person} is in the {what}."
    if kind == "food":
        return f"{person} likes {what}."
    return f"{person} has {what[0]} {what[1]} {what[2]}."


def questions(told, stranger):
    """All (kind, question, answer) that the facts allow."""
    found = []
    for kind, person, what in told:
        whole = sentence(kind, person, what)
        if kind == "place":
            found += [("where", f"Where is {person}?", whole),
                      ("who is in", f"Who is in the {what}?", whole),
                      ("unknown", f"Where is {stranger}?", "I do not know.")]
        elif kind == "food":
            found += [("likes", f"What does {person} like?", whole),
                      ("who likes", f"Who likes {what}?", whole),
                      ("unknown", f"What does {stranger} like?", "I do not know.")]
        else:
            number, color, things = what
            found += [("what", f"What does {person} have?", whole),
                      ("who has", f"Who has the {things}?", f"{person} has the {things}."),
                      ("count", f"How many {things} does {person} have?",
                       f"{person} has {number} {things}."),
                      ("color", f"Which color are the {things}?", f"The {things} are {color}."),
                      ("unknown", f"What does {stranger} have?", "I do not know.")]
    owners = [(person, what[0]) for kind, person, what in told if kind == "things"]
    if len(owners) == 2:
        (one, a), (two, b) = owners
        found.append(("sum", f"How many things do {one} and {two} have?", f"{a} + {b} = {a + b}."))
    return found


def story(dice, more=()):
    """The facts in one line, and three to four (kind, question, answer); the kinds in more twice as
    often."""
    told, stranger = facts(dice)
    possible = questions(told, stranger)
    kinds = sorted({kind for kind, _, _ in possible})
    kinds = dice.some(kinds + [kind for kind in kinds if kind in more], min(4, len(told)))
    asked = [dice.pick([q for q in possible if q[0] == kind]) for kind in kinds]
    return " ".join(sentence(*fact) for fact in told), asked


def stories(count, seed):
    dice = Dice(seed)
    return [story(dice) for _ in range(count)]


def text(facts_, asked):
    """The model's text: facts, then a question and its answer a line."""
    return facts_ + " " + "".join(f"{question} {answer}\n" for _, question, answer in asked)


def main():
    count, seed = (int(a) for a in (sys.argv[1:] + ["5", "1"][len(sys.argv) - 1:]))
    for told, asked in stories(count, seed):
        print(text(told, asked))


if __name__ == "__main__":
    main()
