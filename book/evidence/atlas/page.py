"""How the atlas looks on its page: a table for each class, which reads without a script. Page: :doc:`/book/atlas`."""

import ast
import inspect
import re
import textwrap
from collections import Counter
from functools import cache
from html import escape

from attnbook.diagnose.links import BOOK, link
from evidence.atlas import CAUSES, KINDS, MODULES, incidents, threads
from evidence.atlas.entries import Cause
from evidence.atlas.recorded import ANSWERS
from evidence.atlas.topics import TOPICS, topics

RUN = Cause._fields.index("run")
COLUMNS = ("What goes wrong", "What you see, and what shows it", "Where people met it")


def symptom(cause):
    """Which results are wrong, in words: what the filter calls the symptom."""
    return "an error" if cause.spoils == ("raises",) else ", ".join(cause.spoils) + " wrong"


def libraries():
    """The libraries of all incidents, the one with the most first, and "other" last."""
    counted = Counter(thread.library for thread in incidents().values())
    return sorted(counted, key=lambda name: (name == "other", -counted[name], name.lower()))


def counts(record):
    """Rows of the table of counts: class, causes, incidents, and how many causes have each answer. The last is all."""
    rows = [_counted(kind, causes, record) for kind, causes in KINDS.items()]
    return [*rows, _counted("All", CAUSES.values(), record)]


def _counted(name, causes, record):
    answers = Counter(record["causes"][cause.slug]["answer"] for cause in causes)
    addresses = {thread.address for cause in causes for thread in cause.threads}
    return name, len(list(causes)), len(addresses), *(answers[answer] for answer in ANSWERS)


def counts_table(record):
    """HTML: how many causes and incidents a class has, and what ``diagnose`` says of its causes."""
    heads = ("Class", "Causes", "Incidents", *(answer.capitalize() for answer in ANSWERS))
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{n}</td>" for n in numbers)}</tr>\n'
        for name, *numbers in counts(record)
    )
    head = "".join(f'<th scope="col">{head}</th>' for head in heads)
    meaning = "".join(f"<li><b>{answer}</b>: {escape(says)}</li>" for answer, says in ANSWERS.items())
    caption = f"What diagnose makes of the causes of each class, recorded on {record['date']} by make atlas"
    return (
        f"<ul>{meaning}</ul>\n"
        f'<div class="pst-scrollable-table-container"><table class="atlas-counts"><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def filters():
    """HTML: what to filter by. Hidden until the script shows it."""
    offered = {
        "class": KINDS,
        "topic": TOPICS,
        "symptom": list(dict.fromkeys(symptom(cause) for cause in sorted(CAUSES.values(), key=_simple_first))),
        "library": libraries(),
        "year": sorted({str(thread.year) for _, thread in threads()}, reverse=True),
    }
    fields = "".join(
        f'<label>{name.capitalize()} <select name="{name}"><option value="">all</option>'
        f"{''.join(map(_option, values))}</select></label>\n"
        for name, values in offered.items()
    )
    return f'<style>{_STYLE}</style>\n<form class="atlas-filter" hidden>\n{fields}<output></output></form>'


def _option(value):
    """HTML: a symptom says that more may be wrong."""
    least = "at least " if value.endswith(" wrong") else ""
    return f'<option value="{escape(value)}">{least}{escape(value)}</option>'


def _simple_first(cause):
    return len(cause.spoils), cause.spoils


def table(kind, record):
    """HTML: the causes of a class, a row each."""
    causes = KINDS[kind]
    head = "".join(f'<th scope="col">{column}</th>' for column in COLUMNS)
    rows = "\n".join(_row(cause, record["causes"][cause.slug]) for cause in causes)
    caption = f"{kind}: {len(causes)} causes"
    return (
        f'<table class="atlas" data-class="{escape(kind)}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"
    )


def _row(cause, recorded):
    answer, names = recorded["answer"], "".join(f" {_named(name)}" for name in recorded["names"])
    also = escape("; ".join(topics(cause.slug)))
    topic = f'<p class="topics">{also}</p>' if also else ""
    hidden = " Asserted: without that, everything is right." if cause.hides else ""
    seen = (
        f'<p class="wrong">{escape(symptom(cause).capitalize() if cause.spoils == ("raises",) else symptom(cause))}</p>'
        f"<p><b>A test needs:</b> {_words(cause.needs)}{hidden}</p><p><b>Fix:</b> {_words(cause.fix)}</p>"
        f"<p><b>diagnose:</b> {answer}{':' * bool(names)}{names}</p>"
    )
    what = (
        f'<p><b>{_words(cause.title)}</b> <a class="here" href="#atlas-{cause.slug}" aria-label="Link to this row: '
        f'{escape(cause.title)}">#</a></p>{topic}<p>{_words(cause.cause)}</p>'
        "<details><summary>The reproduction</summary>"
        f'<pre tabindex="0" role="group" aria-label="The reproduction of {cause.slug}">'
        f"{escape(imports(cause.slug))}\n\n{escape(source(cause.slug))}</pre></details>"
    )
    where = "".join(_item(thread) for thread in cause.threads)
    parts = zip(COLUMNS, (what, seen, f"<ul>{where}</ul>"), strict=True)
    cells = "".join(f'<td data-head="{head}">{text}</td>' for head, text in parts)
    data = f'data-symptom="{escape(symptom(cause))}" data-topics="{also}"'
    return f'<tr id="atlas-{cause.slug}" {data}>{cells}</tr>'


def _named(name):
    """What diagnose says, linked to its section where the book has one."""
    address = link(name)
    code = f"<code>{escape(name)}</code>"
    return f'<a href="{address.replace(BOOK, "../")}">{code}</a>' if address else code


def _item(thread):
    sign = "PR " if thread.kind == "pull" else ""
    fixes = ", ".join(
        f'<a href="https://github.com/{thread.repository}/pull/{number}">PR {number}</a>' for number in thread.fixed
    )
    notes = [_words(thread.note)] if thread.note else []
    notes += [] if thread.stated else ["The cause is our inference."]
    notes += [f"Proposed fix: {fixes}."] if fixes else []
    language = "" if thread.title.isascii() or not re.search("[一-鿿]", thread.title) else ' lang="zh"'
    return (
        f'<li data-library="{escape(thread.library)}" data-year="{thread.year}">'
        f'<a href="{thread.address}">{escape(thread.repository)} {sign}{thread.number}</a> ({thread.year}): '
        f"<q{language}>{escape(thread.title)}</q> {' '.join(notes)}</li>"
    )


def _words(text):
    """HTML of a sentence: d_k with the k below, and `code` as code."""
    text = re.sub(r"\b([dn])_(model|[kqv])\b", r"\1<sub>\2</sub>", escape(text, quote=False))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def source(slug):
    """The code of a reproduction as it stands in the table, after the functions of its module that it uses."""
    return _sources()[slug]


def imports(slug):
    """The lines that import what the code of a reproduction uses."""
    used = {part.id for part in ast.walk(ast.parse(source(slug))) if isinstance(part, ast.Name)}
    names = {}
    for node in _import_statements():
        home = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
        asked = {ast.unparse(name) for name in node.names if (name.asname or name.name) in used}
        names.setdefault(home, set()).update(asked)
    return "\n".join(f"{home}import {', '.join(sorted(asked))}" for home, asked in names.items() if asked)


@cache
def _import_statements():
    """Those of every module of the table."""
    nodes = (node for module in MODULES for node in ast.parse(inspect.getsource(module)).body)
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


@cache
def _sources():
    """{slug: its code}, of every module of the table."""
    found = {}
    for module in MODULES:
        text = inspect.getsource(module)
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Cause":
                found[node.args[0].value] = _with_helpers(text, tree, node.args[RUN])
    return found


def _with_helpers(text, tree, node):
    """The code of a node, after the statements of its module that define what it uses, in their order."""
    defined = {name: statement for statement in tree.body for name in _defines(statement)}
    asked, used = [node], set()
    while asked:
        names = {part.id for part in ast.walk(asked.pop()) if isinstance(part, ast.Name)} & defined.keys() - used
        used |= names
        asked += [defined[name] for name in names]
    helpers = [statement for statement in tree.body if used.intersection(_defines(statement))]
    code = [ast.get_source_segment(text, statement) for statement in helpers]
    if not isinstance(node, ast.Name):
        code.append(textwrap.dedent(" " * node.col_offset + ast.get_source_segment(text, node)))
    return "\n\n".join(code)


def _defines(statement):
    """The names that a statement of a module defines."""
    if isinstance(statement, ast.Assign):
        return [name.id for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return [statement.name] if isinstance(statement, ast.FunctionDef) else []


_STYLE = """
table.atlas { width: 100%; table-layout: fixed; border-collapse: collapse; font-size: 0.85em;
  line-height: 1.45; overflow-wrap: anywhere; }
table.atlas caption, table.atlas-counts caption { caption-side: top; text-align: left; font-weight: 600; }
table.atlas :is(th, td) { width: 34%; padding: 0.5em 0.7em 0.5em 0; vertical-align: top; text-align: left; }
table.atlas tr { border-bottom: 1px solid var(--pst-color-border, #999); scroll-margin-top: 4rem; }
table.atlas tr:target { outline: 2px solid var(--ab-blue, #0072b2); outline-offset: -2px; }
table.atlas .here { display: inline-block; min-width: 24px; min-height: 24px; text-align: center; }
table.atlas p { margin: 0 0 0.4em; }
table.atlas ul { margin: 0; padding: 0; list-style: none; }
table.atlas li { margin: 0 0 0.5em; }
table.atlas pre { font-size: 0.85em; max-width: 100%; overflow-x: auto; overflow-wrap: normal; }
table.atlas .topics { color: var(--pst-color-text-muted, #555); font-size: 0.9em; }
table.atlas .wrong { color: var(--ab-orange, #c24e00); font-weight: 600; }
table.atlas [hidden] { display: none; }
table.atlas-counts :is(th, td) { padding: 0.15em 0.8em 0.15em 0; text-align: right; }
table.atlas-counts :is(th:first-child) { text-align: left; font-weight: 400; }
table.atlas-counts tr:last-child > * { font-weight: 600; }
.atlas-filter:not([hidden]) { display: flex; flex-wrap: wrap; gap: 0.5em 1.2em; align-items: baseline; margin: 1em 0; }
.atlas-filter label { display: flex; flex-wrap: wrap; gap: 0 0.4em; max-width: 100%; }
.atlas-filter select { max-width: 100%; font: inherit; color: inherit; background: var(--pst-color-surface, #eee);
  border: 1px solid var(--pst-color-border, #999); border-radius: 0.25rem; padding: 0.2em; }
@media (max-width: 600px) {
  table.atlas-counts { font-size: 0.75em; }
  table.atlas-counts :is(th, td) { padding-right: 0.3em; }
  table.atlas-counts caption { max-width: calc(100vw - 2.5rem); white-space: normal; }
  table.atlas, table.atlas :is(caption, tbody, tr, td) { display: block; width: auto; }
  table.atlas [hidden] { display: none; }
  table.atlas thead { position: absolute; clip-path: inset(50%); height: 1px; overflow: hidden; }
  table.atlas tr { border: 1px solid var(--pst-color-border, #999); border-radius: 0.4rem; margin: 0 0 0.8rem;
    padding: 0.3rem 0.7rem; }
  table.atlas td { padding: 0.4em 0; border: 0; }
  table.atlas td + td::before { content: attr(data-head); display: block; font-size: 0.85em;
    color: var(--pst-color-text-muted, #555); }
}
@media print { .atlas-filter { display: none !important; } table.atlas tr { break-inside: avoid; } }
"""
