"""Convert an invitation (iCalendar, RFC 5545) to the text that a mail program shows: what, when, where and with whom."""

from __future__ import annotations

import re

_FOLDED = re.compile(r"\n[ \t]")
_PROPERTY = re.compile(r"([A-Z-]+)((?:;[^:\";]*(?:\"[^\"]*\"[^:\";]*)*)*):(.*)", re.IGNORECASE)
_ESCAPED = re.compile(r"\\([\\;,nN])")
_MOMENT = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)\d*(Z?))?")
_PARAMETER = re.compile(r";(TZID|CN)=(?:\"([^\"]*)\"|([^;:]*))", re.IGNORECASE)
_SHOWN = {
    "SUMMARY": "",
    "DTSTART": "When",
    "DTEND": "Until",
    "DUE": "Due",
    "LOCATION": "Where",
    "ORGANIZER": "Organizer",
    "ATTENDEE": "Attendee",
    "STATUS": "Status",
    "DESCRIPTION": "",
}
"""Property -> what it is called in the text."""
_EVENTS = frozenset({"VEVENT", "VTODO", "VJOURNAL"})


def calendar_to_text(calendar: str) -> str:
    """Return the properties of the events of `calendar` that people read, one to a line. Never raises."""
    lines: list[str] = []
    open_parts: list[str] = []
    for line in _FOLDED.sub("", calendar).split("\n"):
        found = _PROPERTY.fullmatch(line.strip())
        if found is None:
            continue
        name, parameters, value = found[1].upper(), found[2], found[3]
        if name == "BEGIN":
            open_parts.append(value.strip().upper())
        elif name == "END":
            if open_parts:
                open_parts.pop()
        elif name in _SHOWN and open_parts and open_parts[-1] in _EVENTS:
            text = _shown(name, parameters, value)
            label = _SHOWN[name]
            lines.append(f"{label}: {text}" if label else text)
    return "\n".join(line for line in lines if line.strip())


def _shown(name: str, parameters: str, value: str) -> str:
    given = {key.upper(): quoted or bare for key, quoted, bare in _PARAMETER.findall(parameters)}
    if name in ("DTSTART", "DTEND", "DUE"):
        return _moment(value, given.get("TZID", ""))
    if name in ("ORGANIZER", "ATTENDEE"):
        address = re.sub(r"^mailto:", "", value, flags=re.IGNORECASE)
        return f"{given['CN']} <{address}>" if given.get("CN") else address
    return _ESCAPED.sub(lambda found: "\n" if found[1] in "nN" else found[1], value)


def _moment(value: str, zone: str) -> str:
    found = _MOMENT.match(value.strip())
    if found is None:
        return value
    year, month, day, hour, minute, utc = found.groups()
    time = f" {hour}:{minute}" if hour else ""
    return f"{year}-{month}-{day}{time}{' UTC' if utc else f' ({zone})' if zone and hour else ''}"
