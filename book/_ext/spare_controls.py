"""Controls of figures are no part of the page until a reader comes near: interactive.js takes them out of a template.

When a page opens, a browser lays out every section in which it finds a form, far from the screen too: it looks for
fields to fill in. In a long chapter this took a phone half a second.
"""

import re

FORM = re.compile(r'<form autocomplete="off" hidden>.*?</form>', re.DOTALL)  # as attnbook.figures writes it


def set_aside(app, pagename, templatename, context, doctree):
    if "body" in context:
        context["body"] = FORM.sub(r"<template>\g<0></template>", context["body"])


def setup(app):
    app.connect("html-page-context", set_aside)
    return {"parallel_read_safe": True}
