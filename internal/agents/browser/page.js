// What is asked of a page. It runs in a world of its own: the page's elements are the same,
// but its code can neither see nor change anything here. Properties are taken from the
// prototypes, since a form's fields would hide them: <input name="parentNode">.
globalThis.sandpit ??= (() => {
  const getter = (type, name) => {
    const get = Object.getOwnPropertyDescriptor(type.prototype, name).get;
    return (node) => get.call(node);
  };
  const method = (type, name) => {
    const f = type.prototype[name];
    return (node, ...rest) => f.call(node, ...rest);
  };
  const nodeType = getter(Node, "nodeType"), firstChild = getter(Node, "firstChild"), nextSibling = getter(Node, "nextSibling");
  const parentNode = getter(Node, "parentNode"), isConnected = getter(Node, "isConnected"), textContent = getter(Node, "textContent");
  const nodeValue = getter(Node, "nodeValue"), ownerDocument = getter(Node, "ownerDocument"), contains = method(Node, "contains");
  const localName = getter(Element, "localName"), shadowRoot = getter(Element, "shadowRoot"), attribute = method(Element, "getAttribute");
  const rectOf = method(Element, "getBoundingClientRect"), rects = method(Element, "getClientRects"), visible = method(Element, "checkVisibility");
  const scrollIntoView = method(Element, "scrollIntoView"), matches = method(Element, "matches"), outerHTML = getter(Element, "outerHTML");
  const innerText = getter(HTMLElement, "innerText"), focus = method(HTMLElement, "focus"), editable = getter(HTMLElement, "isContentEditable");
  const defaultView = getter(Document, "defaultView"), rootOf = getter(Document, "documentElement"), bodyOf = getter(Document, "body");
  const titleOf = getter(Document, "title"), query = method(Document, "querySelector"), walker = method(Document, "createTreeWalker");
  const contentDocument = getter(HTMLIFrameElement, "contentDocument");
  const is = (e, name) => nodeType(e) === 1 && localName(e) === name;

  const most = {elements: 500, text: 100000, nodes: 100000, name: 120, milliseconds: 3000};
  const controls = new Set(["button", "select", "textarea", "summary", "input"]);
  const roles = new Set(["button", "link", "checkbox", "radio", "tab", "menuitem", "menuitemcheckbox", "menuitemradio", "switch",
    "combobox", "option", "textbox", "searchbox", "slider", "spinbutton", "treeitem"]);
  const blocks = new Set(["address", "article", "aside", "blockquote", "body", "br", "dd", "details", "dialog", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre",
    "section", "summary", "table", "td", "th", "tr", "ul"]);
  const silent = new Set(["script", "style", "noscript", "template", "head", "svg", "canvas"]);
  const written = new Set(["text", "search", "url", "tel", "email", "password", "number", ""]);
  const chosen = new Set(["date", "time", "datetime-local", "month", "week", "color", "range"]);

  let elements = [];
  const problem = (code, message) => ({problem: {code, message}});
  const short = (text, length) => {
    const one = String(text ?? "").slice(0, 20 * length).replace(/\s+/g, " ").trim();
    return one.length > length ? one.slice(0, length - 1) + "…" : one;
  };
  const type = (e) => is(e, "input") ? (attribute(e, "type") ?? "").toLowerCase() : "";

  function label(e) {
    const doc = ownerDocument(e);
    let text = attribute(e, "aria-label");
    for (const id of (attribute(e, "aria-labelledby") ?? "").split(/\s+/).slice(0, 5)) {
      const other = !text && id && doc.getElementById(id);
      if (other) text = textContent(other);
    }
    const isField = is(e, "input") || is(e, "select") || is(e, "textarea");
    if (!text && isField && e.labels?.length) text = textContent(e.labels[0]).replace(textContent(e), ""); // without the options of a list
    if (!text && ["submit", "button", "reset"].includes(type(e))) text = e.value || type(e);
    if (!text && !isField) text = textContent(e);
    if (!text?.trim()) {
      const picture = !isField && e.querySelector?.("img[alt]");
      text = (picture && attribute(picture, "alt")) || attribute(e, "placeholder") || attribute(e, "title") || attribute(e, "alt") || attribute(e, "name");
    }
    return short(text, most.name);
  }

  function roleOf(e) {
    const name = localName(e);
    if (name === "a") return "link";
    if (name === "select") return "select";
    if (name === "textarea") return "textbox";
    if (name === "summary") return "button";
    if (name === "input") {
      const kind = type(e);
      if (written.has(kind)) return "textbox";
      return ["submit", "button", "reset", "image"].includes(kind) ? "button" : kind;
    }
    return attribute(e, "role") || (name === "button" ? name : editable(e) ? "textbox" : "clickable");
  }

  // 2: a control, 1: something else that can be clicked and may hold more, 0: neither.
  function interactive(e, style) {
    const name = localName(e);
    if (controls.has(name)) return type(e) === "hidden" ? 0 : 2;
    if (name === "a" && attribute(e, "href") !== null) return 2;
    if (roles.has(attribute(e, "role"))) return 2;
    const editing = attribute(e, "contenteditable");
    if (editing !== null && editing !== "false") return 2;
    if (attribute(e, "onclick") !== null) return 1;
    const index = attribute(e, "tabindex");
    if (index !== null && Number(index) >= 0) return 1;
    const parent = parentNode(e);
    if (style.cursor === "pointer" && !(parent && nodeType(parent) === 1 && getComputedStyle(parent).cursor === "pointer")) return 1;
    return 0;
  }

  function describe(e) {
    const d = {role: roleOf(e), name: label(e)};
    if (is(e, "a")) d.href = short(e.href, 300);
    if (is(e, "select")) {
      d.value = short(e.selectedOptions?.[0]?.text, most.name);
      d.options = Array.from(e.options).slice(0, 20).map((o) => short(o.text, 60));
    } else if (is(e, "textarea") || (is(e, "input") && (written.has(type(e)) || chosen.has(type(e))))) {
      d.value = type(e) === "password" ? (e.value ? "***" : "") : short(e.value, most.name);
    }
    if (type(e) === "checkbox" || type(e) === "radio") d.checked = e.checked;
    if (e.disabled === true || attribute(e, "aria-disabled") === "true") d.disabled = true;
    return d;
  }

  function line(d, index) {
    let text = `[${index}] ${d.role} ${JSON.stringify(d.name)}`;
    if (d.value) text += ` value=${JSON.stringify(d.value)}`;
    if (d.options) text += ` options=${JSON.stringify(d.options)}`;
    if (d.checked) text += " checked";
    if (d.disabled) text += " disabled";
    if (d.href) text += " -> " + d.href;
    return text;
  }

  function take() {
    elements = [];
    const told = [], out = [];
    let length = 0, nodes = 0, cut = false, fresh = true;
    const end = performance.now() + most.milliseconds;
    const put = (text) => {
      if (length + text.length > most.text) { cut = true; return; }
      length += text.length; out.push(text); fresh = false;
    };
    const newline = () => { if (!fresh) { out.push("\n"); fresh = true; } };
    const children = (node) => { for (let c = firstChild(node); c && !cut; c = nextSibling(c)) walk(c); };
    let depth = 0;
    function walk(node) {
      if (++nodes > most.nodes || performance.now() > end || depth > 400) { cut = true; return; }
      if (nodeType(node) === 3) {
        const text = nodeValue(node).slice(0, most.text).replace(/\s+/g, " ");
        if (text !== " " || !fresh) put(fresh ? text.trimStart() : text);
        return;
      }
      if (nodeType(node) !== 1 || silent.has(localName(node))) return;
      const style = getComputedStyle(node);
      if (!visible(node) && style.display !== "contents") return;
      depth++;
      element(node, style);
      depth--;
    }
    function element(e, style) {
      const name = localName(e), block = blocks.has(name);
      if (block) newline();
      const kind = style.visibility === "visible" ? interactive(e, style) : 0;
      const box = rectOf(e);
      if (kind && (box.width * box.height > 0 || is(e, "input")) && elements.length < most.elements) {
        const d = describe(e);
        if (kind === 2) newline();
        put(line(d, elements.length) + (kind === 2 ? "" : ": "));
        told.push({index: elements.length, ...d});
        elements.push(e);
        if (kind === 2) { newline(); return; }
      }
      if (/^h[1-6]$/.test(name)) put("#".repeat(Number(name[1])) + " ");
      if (name === "li") put("- ");
      if (name === "img" && attribute(e, "alt")) put(`(picture: ${short(attribute(e, "alt"), most.name)}) `);
      if (name === "iframe") frame(e); else children(shadowRoot(e) ?? e);
      if (name === "slot") for (const node of e.assignedNodes()) walk(node);
      if (block) newline();
      if (name === "td" || name === "th") put(" | ");
    }
    function frame(e) {
      const doc = contentDocument(e);
      newline();
      if (doc) { const root = rootOf(doc); if (root) walk(root); return; }
      put(`(frame of another site, ${short(attribute(e, "src"), 200)}: see the picture, click by coordinates)\n`);
    }
    const root = rootOf(document);
    if (root) walk(root);
    return {text: out.join(""), elements: told, cut};
  }

  function find(target) {
    if (target.index !== undefined && target.index !== null) {
      const e = elements[target.index];
      if (!e) return problem("not_found", `there is no element ${target.index} on this page`);
      return isConnected(e) ? {e} : problem("not_found", `the element ${target.index} is no longer on this page`);
    }
    if (target.selector) {
      try {
        const e = query(document, target.selector);
        return e ? {e} : problem("not_found", "nothing on this page matches the selector");
      } catch {
        return problem("invalid", "this is not a CSS selector");
      }
    }
    const before = elements, wanted = target.text.toLowerCase(), names = take().elements, now = elements;
    elements = before; // the caller's numbers stay
    const match = names.find((d) => d.name.toLowerCase() === wanted) ?? names.find((d) => d.name.toLowerCase().includes(wanted));
    return match ? {e: now[match.index]} : problem("not_found", "no element on this page has that text");
  }

  // deepest is the element at a point of a document, inside of shadow roots.
  function deepest(doc, x, y) {
    let e = doc.elementFromPoint(x, y);
    for (let root = e && shadowRoot(e); root; root = e && shadowRoot(e)) {
      const inner = root.elementFromPoint(x, y);
      if (!inner || inner === e) break;
      e = inner;
    }
    return e;
  }

  function within(inner, outer) {
    for (let n = inner; n; n = parentNode(n) ?? n.host) if (n === outer) return true;
    return false;
  }

  function point(target) {
    const {e, problem: wrong} = find(target);
    if (wrong) return {problem: wrong};
    scrollIntoView(e, {block: "center", inline: "center", behavior: "instant"});
    const box = Array.from(rects(e)).find((r) => r.width * r.height > 0);
    if (!box || !visible(e)) return problem("conflict", "the element is not visible");
    let view = defaultView(ownerDocument(e));
    let x = Math.min(Math.max(box.left + box.width / 2, 0), view.innerWidth - 1), y = Math.min(Math.max(box.top + box.height / 2, 0), view.innerHeight - 1);
    const hit = deepest(ownerDocument(e), x, y);
    const through = hit && (within(hit, e) || within(e, hit) || Array.from(e.labels ?? []).some((l) => within(hit, l)));
    if (hit && !through) return problem("conflict", `the element is covered by <${localName(hit)}> ${JSON.stringify(short(textContent(hit), 60))}`);
    while (view.frameElement) {
      const outer = rectOf(view.frameElement);
      x += outer.left + view.frameElement.clientLeft; y += outer.top + view.frameElement.clientTop;
      view = view.parent;
    }
    return {x, y, told: line(describe(e), "").replace(/^\[\] /, "")};
  }

  function set(e, value) {
    const proto = is(e, "select") ? HTMLSelectElement : HTMLInputElement;
    Object.getOwnPropertyDescriptor(proto.prototype, "value").set.call(e, value);
    e.dispatchEvent(new Event("input", {bubbles: true}));
    e.dispatchEvent(new Event("change", {bubbles: true}));
  }

  // fill readies a field for typing: what it holds is selected. One that is not typed into
  // is set at once.
  function fill(target, value) {
    const {e, problem: wrong} = find(target);
    if (wrong) return {problem: wrong};
    if (e.disabled === true || e.readOnly === true) return problem("conflict", "the field cannot be changed");
    scrollIntoView(e, {block: "center", inline: "center", behavior: "instant"});
    if (is(e, "input") && chosen.has(type(e))) {
      set(e, value);
      return e.value === value || type(e) === "color" ? {done: true} : problem("invalid", `the field does not take this; a field of type ${type(e)} wants another form`);
    }
    const field = is(e, "textarea") || (is(e, "input") && written.has(type(e)));
    if (!field && !editable(e)) return problem("invalid", `<${localName(e)}> is not a field for text`);
    focus(e);
    if (field) {
      if (type(e) === "number" || type(e) === "email") e.value = ""; // these have no selection by position
      e.select();
    } else {
      defaultView(ownerDocument(e)).getSelection().selectAllChildren(e);
    }
    return {done: false, empty: field ? e.value === "" : textContent(e) === ""};
  }

  function options(target) {
    const {e, problem: wrong} = find(target);
    if (wrong) return {problem: wrong};
    if (!is(e, "select")) return problem("invalid", `<${localName(e)}> is not a list to select from`);
    return {options: Array.from(e.options).slice(0, 1000).map((o, index) => ({index, text: short(o.text, most.name), value: short(o.value, most.name), selected: o.selected}))};
  }

  function choose(target, wanted) {
    const {e, problem: wrong} = find(target);
    if (wrong) return {problem: wrong};
    if (!is(e, "select")) return problem("invalid", `<${localName(e)}> is not a list to select from`);
    const all = Array.from(e.options);
    const option = all.find((o) => o.text.trim() === wanted.trim()) ?? all.find((o) => o.value === wanted);
    if (!option) return problem("not_found", "the list has no such option");
    if (option.disabled || e.disabled) return problem("conflict", "the option cannot be selected");
    option.selected = true;
    e.dispatchEvent(new Event("input", {bubbles: true}));
    e.dispatchEvent(new Event("change", {bubbles: true}));
    return {told: short(option.text, most.name)};
  }

  // scroller is what moves: the page, or where it is as large as the window, its largest part that can.
  function scroller() {
    const page = document.scrollingElement ?? rootOf(document);
    if (page.scrollHeight > innerHeight + 1) return page;
    let best = page, size = 0, nodes = 0;
    const all = walker(document, rootOf(document), NodeFilter.SHOW_ELEMENT);
    for (let e = all.nextNode(); e && ++nodes < 5000; e = all.nextNode()) {
      if (e.scrollHeight <= e.clientHeight + 1 || !/auto|scroll/.test(getComputedStyle(e).overflowY)) continue;
      const area = e.clientWidth * e.clientHeight;
      if (area > size) { best = e; size = area; }
    }
    return best;
  }

  const position = () => {
    const e = scroller();
    const height = e === document.scrollingElement ? innerHeight : e.clientHeight;
    return {above: Math.round(e.scrollTop), below: Math.max(0, Math.round(e.scrollHeight - height - e.scrollTop))};
  };

  function scroll(amount, pages) {
    const e = scroller();
    e.scrollBy({top: amount || pages * innerHeight * 0.9, behavior: "instant"});
    return position();
  }

  function toText(wanted) {
    const body = bodyOf(document);
    const all = body && walker(document, body, NodeFilter.SHOW_TEXT), low = wanted.toLowerCase();
    for (let n = all?.nextNode(), nodes = 0; n && nodes < most.nodes; n = all.nextNode(), nodes++) {
      const parent = parentNode(n);
      if (!nodeValue(n).toLowerCase().includes(low) || silent.has(localName(parent)) || !visible(parent)) continue;
      scrollIntoView(parent, {block: "center", behavior: "instant"});
      return position();
    }
    return problem("not_found", "the text is not on this page");
  }

  function content(target, html, limit) {
    let e = rootOf(document);
    if (target.selector || target.index !== undefined && target.index !== null) {
      const found = find(target);
      if (found.problem) return found;
      e = found.e;
    }
    if (!e) return {text: "", cut: false};
    const all = html ? outerHTML(e) : e instanceof HTMLElement ? innerText(e) : textContent(e);
    return {text: all.slice(0, limit), cut: all.length > limit};
  }

  function has(selector, wanted) {
    if (selector) {
      const found = find({selector});
      if (found.problem?.code === "invalid") return found;
      return {found: !!found.e && visible(found.e)};
    }
    const body = bodyOf(document);
    return {found: !!body && innerText(body).toLowerCase().includes(wanted.toLowerCase())};
  }

  function about() {
    const entry = performance.getEntriesByType("navigation")[0];
    return {url: location.href.slice(0, 2000), title: short(titleOf(document), 300), status: entry?.responseStatus ?? 0, width: innerWidth, height: innerHeight, ...position()};
  }

  function state() {
    const taken = take();
    return {...about(), ...taken};
  }

  return {point, fill, options, choose, scroll, toText, content, has, about, state};
})();
