"""Pages and views of the library, taken apart."""

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "input", "img", "hr"}


class Page(HTMLParser):
    """Checks that tags match; keeps tags with their attributes, ids, and text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.ids, self.text = [], [], set(), []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        self.ids |= {value for name, value in attrs if name == "id"}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def attributes(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]
