"""Operations of a context, by name: functions of the context and the fields of the request.

Coordinates are CSS pixels of the viewport. Element ids come from `tree`, `elements` or `text`; they are valid as long
as their document.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from context import PAGE_JS, Context, Failed

Fields = dict[str, Any]
OPERATIONS: dict[str, Callable[[Context, Fields], Awaitable[Any]]] = {}
PAUSE_S = 0.2  # before a page loads again, because the networks of this machine change
ACTION_S = 5.0  # timeout for an element to be present, still and uncovered


def operation(function: Callable[[Context, Fields], Awaitable[Any]]) -> Callable[[Context, Fields], Awaitable[Any]]:
    OPERATIONS[function.__name__] = function
    return function


def need(fields: Fields, name: str) -> Any:
    if fields.get(name) is None:
        raise Failed("refused", f"{fields.get('op')} needs {name!r}")
    return fields[name]


# Pages


@operation
async def goto(context: Context, fields: Fields) -> Any:
    """Opens `url` and waits for its `wait`: load (default), domcontentloaded, commit. A page that has not loaded within
    `load_s` is stopped."""
    page = await context.current()
    url, wait, seconds = need(fields, "url"), fields.get("wait") or "load", float(fields.get("load_s") or 15.0)
    status = None
    try:
        response = await _loaded(page, url, wait, seconds)
        status = response.status if response is not None else None
    except Exception as error:
        if type(error).__name__ == "TimeoutError":
            await context.stop_loading(page)
            if not await context.answers(page):
                await context.stop_page()
        elif "ERR_ABORTED" not in str(error) and "interrupted by another navigation" not in str(error):
            raise
        elif not await context.answers(page):
            await context.stop_page()
    if page in context.crashed:
        raise Failed("crashed", "the page crashed")
    return {"url": (await context.current()).url, "status": status}


async def _loaded(page: Any, url: str, wait: str, seconds: float) -> Any:
    """Loads a page within `seconds`. Chromium breaks loads off when an interface of this machine changes, such as the
    network of a new container: these are repeated.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return await page.goto(url, wait_until=wait, timeout=max(1.0, 1000 * (until - time.monotonic())))
        except Exception as error:
            if "ERR_NETWORK_CHANGED" not in str(error) or time.monotonic() + PAUSE_S > until:
                raise
        await asyncio.sleep(PAUSE_S)


@operation
async def back(context: Context, fields: Fields) -> Any:
    """Goes back in the history. `moved`: False without an earlier page."""
    page = await context.current()
    history = await (await context.session(page)).send("Page.getNavigationHistory")
    moved = history["currentIndex"] > 0 and history["entries"][history["currentIndex"] - 1]["url"] != "about:blank"
    if moved:
        await page.go_back(timeout=float(fields.get("load_s") or 15.0) * 1000)
    return {"moved": moved, "url": page.url}


@operation
async def settle(context: Context, fields: Fields) -> Any:
    """Waits up to `seconds` for the effects of an action. `over`: True if they finished."""
    return {"over": await context.settle(float(fields.get("seconds") or 5.0))}


@operation
async def where(context: Context, fields: Fields) -> Any:
    """Returns URL, title, scroll position and sizes of the page."""
    page = await context.current()
    return {"url": page.url, **await in_page(page, "where")}


@operation
async def tabs(context: Context, fields: Fields) -> Any:
    """Returns URL and title of each tab, and the `current` one; first switches `to` a tab or `close`s one."""
    if (number := fields.get("to")) is not None:
        context.page = tab(context, number)
        await context.page.bring_to_front()
    if (number := fields.get("close")) is not None:
        await tab(context, number).close()
    current = await context.current()
    listed = [{"url": page.url, "title": await page.title()} for page in context.pages]
    return {"tabs": listed, "current": context.pages.index(current)}


def tab(context: Context, number: int) -> Any:
    if not 0 <= number < len(context.pages):
        raise Failed("refused", f"there is no tab {number}; there are {len(context.pages)}, from 0")
    return context.pages[number]


# Content of a page


@operation
async def evaluate(context: Context, fields: Fields) -> Any:
    """Evaluates the JavaScript `script`, an expression or a function of `arg`; returns JSON. Awaits promises."""
    return await (await context.current()).evaluate(need(fields, "script"), fields.get("arg"))


@operation
async def tree(context: Context, fields: Fields) -> Any:
    """Returns the accessibility tree as `lines` of text, with the fields of `where`."""
    page = await context.current()
    return {"url": page.url, **await in_page(page, "tree")}


@operation
async def elements(context: Context, fields: Fields) -> Any:
    """Returns the actionable elements: `id`, `role`, `name`, `state`, `box` [left, top, width, height], `visible`."""
    return await in_page(await context.current(), "elements")


@operation
async def text(context: Context, fields: Fields) -> Any:
    """Returns the page, or the element `element`, as readable text, with the fields of `where`."""
    page = await context.current()
    found = await in_page(page, "text", fields.get("element"))
    if found is None:
        raise gone(fields["element"])
    return {"url": page.url, **found}


@operation
async def screenshot(context: Context, fields: Fields) -> Any:
    """Returns the viewport or its `clip` [x, y, width, height] in base64, as png, jpeg (with `quality`) or webp."""
    page = await context.current()
    session = await context.session(page)
    settings: Fields = {"format": fields.get("format") or "png", "optimizeForSpeed": bool(fields.get("fast"))}
    if fields.get("quality") is not None:
        settings["quality"] = fields["quality"]
    if fields.get("clip") is not None:
        x, y, width, height = fields["clip"]
        settings["clip"] = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
    for left in (2, 1, 0):
        try:
            return (await session.send("Page.captureScreenshot", settings))["data"]
        except Exception as error:
            if "Unable to capture screenshot" not in str(error) or not left:
                raise
            await context.tick(page)  # under load a frame may be missing: retry with the next
    return None


async def in_page(page: Any, name: str, argument: Any = None) -> Any:
    """Calls a function of page.js; injects page.js on the first call."""
    for source in ("", f"{PAGE_JS};"):
        script = f"([name, argument]) => {{ {source} const own = window[Symbol.for('agentrl')];"
        found = await page.evaluate(script + "return own ? [own[name](argument)] : null }", [name, argument])
        if found is not None:
            return found[0]
    raise Failed("page", "the page has no document")


# Acting on elements


MARK = "data-agentrl"


async def element(context: Context, fields: Fields) -> tuple[Any, Fields]:
    """Returns Playwright's locator of `element`, and `point`, its middle; None outside of the viewport or in a frame.

    The locator uses an attribute that is set on the element until the next call.

    A handle would need no attribute, but makes Playwright inject its scripts into the page's main world, which triples
    the time of the first click on a page. Elements inside a frame are handles.
    """
    number = need(fields, "element")
    page = await context.current()
    if not (found := await page.evaluate(MARKED, [number, MARK])):
        raise gone(number)
    if found["here"]:
        return page.locator(f"css=[{MARK}]"), {"point": found["point"]}
    handle = await page.evaluate_handle("number => window[Symbol.for('agentrl')].element(number)", number)
    return handle.as_element(), {"point": None}


MARKED = """([number, mark]) => {
  const own = window[Symbol.for('agentrl')], found = own?.element(number);
  if (!found) return null;
  own.marked?.removeAttribute(mark);
  for (const copy of document.querySelectorAll('[' + mark + ']')) copy.removeAttribute(mark);  // the page copied it
  if (found.ownerDocument !== document) return {here: false};
  found.setAttribute(mark, '');
  own.marked = found;
  const box = found.getBoundingClientRect(), x = box.left + box.width / 2, y = box.top + box.height / 2;
  return {here: true, point: x >= 0 && y >= 0 && x < innerWidth && y < innerHeight ? [x, y] : null};
}"""


def gone(number: Any) -> Failed:
    return Failed("refused", f"there is no element {number} on this page")


@operation
async def click(context: Context, fields: Fields) -> Any:
    """Clicks on `element` with `button` left (default), right or middle, `count` times."""
    handle, at = await element(context, fields)
    await handle.click(
        button=fields.get("button") or "left", click_count=fields.get("count") or 1, timeout=ACTION_S * 1000
    )
    return at


@operation
async def fill(context: Context, fields: Fields) -> Any:
    """Replaces the content of the field `element` by `text`, or appends with `add`; `submit` then presses Enter."""
    handle, at = await element(context, fields)
    if fields.get("add"):
        await handle.focus()
        await (await context.current()).keyboard.press("End")
        await (await context.current()).keyboard.insert_text(need(fields, "text"))
    else:
        await handle.fill(need(fields, "text"), timeout=ACTION_S * 1000)
    if fields.get("submit"):
        await handle.press("Enter", timeout=ACTION_S * 1000)
    return at


@operation
async def choose(context: Context, fields: Fields) -> Any:
    """Selects the `options`, by label or value, of the list `element`."""
    handle, at = await element(context, fields)
    found = await (await context.current()).evaluate(
        "([number, options]) => window[Symbol.for('agentrl')].choice(number, options)",
        [fields["element"], need(fields, "options")],
    )
    if "refused" in found:
        raise Failed("refused", found["refused"])
    await handle.select_option(index=found["indexes"], timeout=ACTION_S * 1000)
    return at


@operation
async def scroll_to(context: Context, fields: Fields) -> Any:
    """Scrolls `element` into the viewport."""
    handle, _ = await element(context, fields)
    await handle.scroll_into_view_if_needed(timeout=ACTION_S * 1000)


@operation
async def scroll(context: Context, fields: Fields) -> Any:
    """Scrolls the element in the middle of the viewport by `dx`, `dy` pixels. `moved`: True if anything scrolled."""
    delta = [fields.get("dx") or 0, fields.get("dy") or 0]
    return await in_page(await context.current(), "scroll", delta)


# Mouse and keyboard


@operation
async def mouse_move(context: Context, fields: Fields) -> Any:
    """Moves the mouse to `x`, `y` in `steps`."""
    await (await context.current()).mouse.move(need(fields, "x"), need(fields, "y"), steps=fields.get("steps") or 1)


@operation
async def mouse_click(context: Context, fields: Fields) -> Any:
    """Clicks at `x`, `y` with `button`, `count` times, while the keys `hold` are down."""
    page = await context.current()
    held = fields.get("hold") or []
    for key in held:
        await page.keyboard.down(key)
    button, count = fields.get("button") or "left", fields.get("count") or 1
    await page.mouse.click(need(fields, "x"), need(fields, "y"), button=button, click_count=count)
    for key in reversed(held):
        await page.keyboard.up(key)


@operation
async def mouse_down(context: Context, fields: Fields) -> Any:
    """Presses `button` at the mouse position."""
    await (await context.current()).mouse.down(button=fields.get("button") or "left")


@operation
async def mouse_up(context: Context, fields: Fields) -> Any:
    """Releases `button`."""
    await (await context.current()).mouse.up(button=fields.get("button") or "left")


@operation
async def mouse_drag(context: Context, fields: Fields) -> Any:
    """Presses the left button at the first point of `path`, [[x, y], ...], and releases it at the last."""
    mouse = (await context.current()).mouse
    first, *others = need(fields, "path")
    await mouse.move(*first)
    await mouse.down()
    for point in others:
        await mouse.move(*point, steps=fields.get("steps") or 5)
    await mouse.up()


@operation
async def wheel(context: Context, fields: Fields) -> Any:
    """Turns the wheel by `dx`, `dy` pixels, at `x`, `y` if given."""
    mouse = (await context.current()).mouse
    if fields.get("x") is not None:
        await mouse.move(fields["x"], need(fields, "y"))
    await mouse.wheel(fields.get("dx") or 0, fields.get("dy") or 0)


@operation
async def key(context: Context, fields: Fields) -> Any:
    """Presses the keys `keys` by Playwright's names: `Enter`, `Control+a`, `x`."""
    names = need(fields, "keys")
    for name in [names] if isinstance(names, str) else names:
        try:
            await (await context.current()).keyboard.press(name)
        except Exception as error:
            if "Unknown key" in str(error):
                raise Failed("refused", f"there is no key {name!r}; some: Enter, Tab, ArrowDown, Control+a") from None
            raise


@operation
async def key_down(context: Context, fields: Fields) -> Any:
    """Presses `key` and holds it."""
    await (await context.current()).keyboard.down(need(fields, "key"))


@operation
async def key_up(context: Context, fields: Fields) -> Any:
    """Releases `key`."""
    await (await context.current()).keyboard.up(need(fields, "key"))


@operation
async def write(context: Context, fields: Fields) -> Any:
    """Types `text` into the focused element, key by key (`keys`: true) or at once."""
    keyboard = (await context.current()).keyboard
    await (keyboard.type if fields.get("keys") else keyboard.insert_text)(need(fields, "text"))
