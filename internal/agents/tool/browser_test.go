package tool_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

const shop = "http://127.0.0.1:8200/"

// needBrowser skips a test on a machine without Chromium, whose programs the sandboxes of
// the tests have.
func needBrowser(tb testing.TB) {
	tb.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		testengine.Skip(tb, "no chromium: %v", err)
	}
}

// newShop returns a sandbox with the web server of the tests inside.
func newShop(tb testing.TB) sandpit.Instance {
	tb.Helper()
	needBrowser(tb)
	box := newBoxOf(tb, sandpit.Spec{Resources: sandpit.Resources{Memory: 1 << 30, CPUs: 2}})
	k := newKit(tb, box, tool.SessionOptions{ID: "server", Dir: "/server"})
	for _, name := range []string{"server.py", "index.html", "second.html"} {
		data, err := os.ReadFile(filepath.Join("testdata", "browser", name))
		if err != nil {
			tb.Fatal(err)
		}
		k.want("file_write", fields{"file": name, "content": string(data)})
	}
	k.want("shell_exec", fields{"command": `setsid python3 server.py 8200 >/dev/null 2>&1 </dev/null &
for i in $(seq 300); do (echo > /dev/tcp/127.0.0.1/8200) 2>/dev/null && exit; sleep 0.1; done; exit 1`}, "[SUCCESS]")
	return box
}

// number is the number of an element in the state of the page.
func (k kit) number(text string) int {
	k.Helper()
	r := k.want("browser_state", nil)
	data, err := json.Marshal(r.Data)
	if err != nil {
		k.Fatal(err)
	}
	var state struct {
		Elements []struct {
			Index int
			Name  string
		}
	}
	if err := json.Unmarshal(data, &state); err != nil {
		k.Fatal(err)
	}
	for _, e := range state.Elements {
		if e.Name == text {
			return e.Index
		}
	}
	k.Fatalf("there is no element %q in\n%s", text, r.Text)
	return 0
}

// pictured checks that a result has a picture of a size.
func (k kit) pictured(r tool.Result, mime string, width, height int) {
	k.Helper()
	if len(r.Images) != 1 || r.Images[0].MIME != mime {
		k.Fatalf("%d pictures, want one of type %s: %s", len(r.Images), mime, r.Text)
	}
	head, format, err := image.DecodeConfig(bytes.NewReader(r.Images[0].Data))
	if err != nil || "image/"+format != mime || head.Width != width || head.Height != height {
		k.Errorf("a picture (%s) of %d x %d (%v), want %s of %d x %d", format, head.Width, head.Height, err, mime, width, height)
	}
}

// TestBrowser has every tool of the browser do what it is for, and fail as it should.
func TestBrowser(t *testing.T) {
	t.Parallel()
	box := newShop(t)
	k := newKit(t, box, tool.SessionOptions{ID: "pages", Dir: "/workspace/pages"})
	testPages(t, k)
	testFields(k)
	testMouse(k)
	testCompound(t, k)
	testAddresses(k)
	if r := k.want("browser_close", nil, "Closed the browser"); r.Failed {
		t.Error(r.Text)
	}
	k.want("browser_close", nil, "is not running")
	k.want("browser_open", fields{"url": shop + "second.html"}, "the second page")
	if r := k.want("shell_exec", fields{"command": "cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 0A '"}); !strings.Contains(r.Text, "1") {
		t.Errorf("something but the server listens: %s", r.Text)
	}
}

func testPages(t *testing.T, k kit) {
	t.Helper()
	k.want("browser_open", fields{"url": "127.0.0.1:8200", "screenshot": true}, "A shop", "# Welcome to the shop", "cheap", `textbox "Your name"`, `value="***"`,
		`select "Size" value="Small" options=["Small","Large","Huge"]`, `button "In the shadow"`, `button "In the frame"`, `link "The second page" -> `+shop+"second.html")
	state := k.want("browser_state", nil, "pixels above")
	k.lacks(state, "Never seen")
	k.lacks(state, "hunter22")
	shot := k.want("browser_screenshot", nil, "1280 x 720")
	k.pictured(shot, "image/png", 1280, 720)
	if file := os.Getenv("SANDPIT_TEST_SCREENSHOT"); file != "" {
		if err := os.WriteFile(file, shot.Images[0].Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	full := k.want("browser_screenshot", fields{"full_page": true})
	if head, _, err := image.DecodeConfig(bytes.NewReader(full.Images[0].Data)); err != nil || head.Height < 3000 {
		t.Errorf("the full page: %+v, %v", head, err)
	}
	k.want("browser_text", fields{"selector": "h1"}, "Welcome to the shop")
	k.want("browser_text", fields{"selector": "#far", "format": "html"}, `<p id="far">`)
	k.refused("browser_text", fields{"selector": "h7"}, sandpit.NotFound)
	k.refused("browser_text", fields{"selector": "]["}, sandpit.Invalid, "not a CSS selector")

	k.want("browser_scroll", nil, "pixels above")
	k.want("browser_scroll", fields{"amount": 100, "direction": "up"})
	k.want("browser_scroll", fields{"text": "end of the page"})
	k.refused("browser_scroll", fields{"text": "nowhere at all"}, sandpit.NotFound)

	k.want("browser_evaluate", fields{"expression": "await Promise.resolve(6 * 7)"}, "42")
	k.want("browser_evaluate", fields{"expression": "document.title"}, "A shop")
	if r := k.want("browser_evaluate", fields{"expression": "nothing.such"}, "[FAILED]", "ReferenceError"); !r.Failed {
		t.Error("what throws is no failure")
	}
	k.want("browser_evaluate", fields{"expression": "undefined"}, "undefined")
	k.want("browser_evaluate", fields{"expression": "1/0"}, "Infinity")
	k.refused("browser_evaluate", fields{"expression": "window"}, sandpit.Unsupported)

	k.want("browser_click", fields{"text": "The second page"}, `Clicked link "The second page"`, "Now at: Second")
	k.want("browser_back", nil, "A shop")
	k.want("browser_back", fields{"where": "forward"}, "Second")
	k.refused("browser_back", fields{"where": "forward"}, sandpit.Conflict)
	k.want("browser_back", fields{"where": "reload"}, "Second")
	k.refused("browser_click", fields{"index": 3000}, sandpit.NotFound, "browser_state")
	k.want("browser_info", nil, "Chrome/", "1280 x 720")
	k.want("browser_config", fields{"resolution": "800x600", "dialogs": "accept"})
	k.pictured(k.want("browser_screenshot", nil), "image/png", 800, 600)
	for _, bad := range []string{"100x100", "1280", "99999x99999", "1280x720x3", "-1280x720", "x"} {
		k.refused("browser_config", fields{"resolution": bad}, sandpit.Invalid)
	}
	k.want("browser_open", fields{"url": shop})
	k.want("browser_click", fields{"text": "Ask me"}, "Really?", "accepted")
	k.want("browser_text", fields{"selector": "#said"}, "yes")
	k.want("browser_config", nil)
	k.want("browser_click", fields{"text": "Ask me"}, "dismissed")
	k.want("browser_text", fields{"selector": "#said"}, "no")
}

func testFields(k kit) {
	k.Helper()
	k.want("browser_open", fields{"url": shop})
	who := k.number("Your name")
	k.want("browser_fill", fields{"index": who, "text": `it's "me" $(id)`})
	k.want("browser_fill", fields{"index": who, "text": "somebody else"})
	k.want("browser_state", nil, `value="somebody else"`)
	k.want("browser_fill", fields{"selector": "[name=day]", "text": "2031-02-03"})
	k.refused("browser_fill", fields{"selector": "[name=day]", "text": "tomorrow"}, sandpit.Invalid)
	k.want("browser_fill", fields{"selector": "[name=day]", "text": "2031-02-03"})
	k.refused("browser_fill", fields{"selector": "[name=fixed]", "text": "x"}, sandpit.Conflict)
	k.refused("browser_fill", fields{"selector": "h1", "text": "x"}, sandpit.Invalid, "not a field")
	k.refused("browser_fill", fields{"text": "x"}, sandpit.Invalid, "select the element")
	k.refused("browser_fill", fields{"text": "x", "index": 1, "selector": "h1"}, sandpit.Invalid)
	k.want("browser_fill", fields{"element_text": "Note", "text": "first"})
	k.want("browser_fill", fields{"element_text": "Note", "text": "a note"})
	k.want("browser_text", fields{"selector": "[contenteditable]"}, "a note")
	k.want("browser_select", fields{"selector": "select"}, "0: Small (selected)", "1: Large", "3 options")
	k.want("browser_select", fields{"selector": "select", "option": "Large"})
	k.refused("browser_select", fields{"selector": "select", "option": "None"}, sandpit.NotFound)
	k.refused("browser_select", fields{"selector": "select", "option": "Huge"}, sandpit.Conflict)
	k.refused("browser_select", fields{"selector": "h1"}, sandpit.Invalid)
	k.want("browser_click", fields{"selector": "[name=gift]"})
	k.want("browser_fill", fields{"selector": "[name=secret]", "text": ""})
	k.want("browser_fill", fields{"index": who, "text": "me", "submit": true}, "Sent", "who=me", "secret=&", "size=l", "gift=yes", "day=2031-02-03")
	k.refused("browser_fill", fields{"index": who, "text": "stale"}, sandpit.NotFound)
}

func testMouse(k kit) {
	k.Helper()
	k.want("browser_open", fields{"url": shop})
	k.refused("browser_click", fields{"selector": "#below"}, sandpit.Conflict, "covered by <div>")
	k.refused("browser_click", fields{"selector": "#hidden button"}, sandpit.Conflict, "not visible")
	k.want("browser_click", fields{"text": "In the shadow"}, "Shadow")
	k.want("browser_click", fields{"text": "In the frame"}, "Framed")
	k.want("browser_click", fields{"text": "Later"})
	k.want("browser_wait", fields{"text": "has arrived", "seconds": 20})
	k.want("browser_wait", fields{"selector": "#late", "seconds": 20})
	k.refused("browser_wait", fields{"text": "never to be", "seconds": 0.5}, sandpit.Timeout)
	k.want("browser_wait", fields{"seconds": 0.1})
	k.want("browser_click", fields{"text": "In a new window"}, "a page was opened: 2")
	k.want("browser_tabs", nil, "* 1", "  2  ")
	k.want("browser_tabs", fields{"action": "switch", "page_id": 2}, "* 2")
	k.want("browser_wait", fields{"text": "the second page", "seconds": 20}, "Now at: Second")
	k.want("browser_tabs", fields{"action": "close", "page_id": 2}, "* 1")
	k.refused("browser_tabs", fields{"action": "close", "page_id": 2}, sandpit.NotFound)

	k.want("browser_open", fields{"url": "data:text/html,<title>keys</title><body style='margin:0'><textarea autofocus style='width:400px;height:200px'>old</textarea>" +
		"<script>addEventListener('contextmenu',e=>document.title='menu');addEventListener('dblclick',e=>document.title='double')</script>"})
	k.want("browser_action", fields{"action_type": "click", "x": 100, "y": 100})
	k.want("browser_action", fields{"action_type": "hotkey", "keys": []string{"Control", "a"}})
	k.want("browser_action", fields{"action_type": "typing", "text": "new"})
	k.want("browser_action", fields{"action_type": "press", "key": "Enter"})
	k.want("browser_press", fields{"key": "X"})
	k.want("browser_evaluate", fields{"expression": "JSON.stringify(document.querySelector('textarea').value)"}, `new\nX`)
	k.want("browser_action", fields{"action_type": "key_down", "key": "Shift"})
	k.want("browser_action", fields{"action_type": "press", "key": "a"})
	k.want("browser_action", fields{"action_type": "key_up", "key": "Shift"})
	k.want("browser_action", fields{"action_type": "press", "key": "b"})
	k.want("browser_evaluate", fields{"expression": "JSON.stringify(document.querySelector('textarea').value)"}, `new\nXAb`)
	k.want("browser_action", fields{"action_type": "double_click", "x": 100, "y": 100}, "double")
	k.want("browser_action", fields{"action_type": "right_click"}, "menu")
	k.want("browser_action", fields{"action_type": "move_rel", "delta_x": 5, "delta_y": -5})
	testDragging(k)
	k.want("browser_action", fields{"action_type": "scroll", "delta_y": 10})
	k.want("browser_action", fields{"action_type": "wait", "duration": 0.01})
	k.refused("browser_action", fields{"action_type": "click", "x": 5000, "y": 1}, sandpit.Invalid, "outside of the window")
	k.refused("browser_action", fields{"action_type": "click", "x": 5}, sandpit.Invalid, "x and y")
	k.refused("browser_action", fields{"action_type": "drag_to"}, sandpit.Invalid, "x and y")
	k.refused("browser_action", fields{"action_type": "press", "key": "NoSuchKey"}, sandpit.Invalid)
	k.refused("browser_action", fields{"action_type": "hotkey"}, sandpit.Invalid)
	k.refused("browser_action", fields{"action_type": "typing"}, sandpit.Invalid)
	k.refused("browser_action", fields{"action_type": "dance"}, sandpit.Invalid)
}

// testDragging looks at what a page notices of moves and drags.
func testDragging(k kit) {
	k.Helper()
	k.want("browser_open", fields{"url": "data:text/html,<body style='margin:0;height:600px'><script>let seen=[];" +
		"for(const kind of ['mousedown','mouseup','mousemove'])addEventListener(kind,e=>seen.push(kind.slice(5)+e.clientX+','+e.clientY+','+e.buttons));</script>"})
	last := func(want ...string) {
		k.want("browser_evaluate", fields{"expression": "seen.join(' ')"}, want...)
		k.want("browser_evaluate", fields{"expression": "(seen=[]).length"}, "0")
	}
	k.want("browser_action", fields{"action_type": "move_to", "x": 50, "y": 60})
	last("move50,60,0")
	k.want("browser_action", fields{"action_type": "drag_to", "x": 150, "y": 160})
	last("down50,60,1", "move150,160,1", "up150,160,0")
	k.want("browser_action", fields{"action_type": "drag_rel", "delta_x": -20, "delta_y": 30})
	last("down150,160,1", "move130,190,1", "up130,190,0")
}

func testCompound(t *testing.T, k kit) {
	t.Helper()
	r := k.want("sandbox_browser", fields{"action": "navigate_to", "url": shop}, "Opened the page", "Welcome to the shop")
	k.pictured(r, "image/png", 1280, 720)
	do := func(in fields, texts ...string) {
		t.Helper()
		in["screenshot"] = false
		if r := k.want("sandbox_browser", in, texts...); len(r.Images) > 0 {
			t.Error("a picture that was not requested")
		}
	}
	index := k.number("Your name")
	do(fields{"action": "input_text", "index": index, "text": "it's"}, `value="it's"`)
	do(fields{"action": "input_text", "index": index, "text": ""}, "Filled in")
	size := k.number("Size")
	do(fields{"action": "get_dropdown_options", "index": size}, "1: Large")
	do(fields{"action": "select_dropdown_option", "index": size, "text": "Large"}, `value="Large"`)
	do(fields{"action": "scroll_down", "amount": 300}, "Scrolled: 300 pixels above")
	do(fields{"action": "scroll_up"}, "Scrolled: 0 pixels above")
	do(fields{"action": "scroll_to_text", "text": "end of the page"}, "Scrolled")
	do(fields{"action": "drag_drop", "element_source": "#drag", "element_target": "#target"}, "dropped")
	do(fields{"action": "click_element", "index": k.number("The second page")}, "second page")
	do(fields{"action": "go_back"}, "Welcome")
	do(fields{"action": "click_coordinates", "x": 1, "y": 1}, "Clicked")
	do(fields{"action": "send_keys", "keys": "End"}, "Pressed")
	do(fields{"action": "wait", "seconds": 0.1}, "Waited")
	do(fields{"action": "get_current_state"}, "Current page")
	do(fields{"action": "switch_tab", "page_id": 1}, "Switched")
	for action, field := range map[string]string{
		"navigate_to": "url", "click_element": "index", "input_text": "index", "send_keys": "keys", "switch_tab": "page_id", "close_tab": "page_id",
		"scroll_to_text": "text", "get_dropdown_options": "index", "select_dropdown_option": "index", "click_coordinates": "x", "drag_drop": "element_source",
	} {
		k.refused("sandbox_browser", fields{"action": action}, sandpit.Invalid, field+" is required for "+action)
	}
	k.refused("sandbox_browser", fields{"action": "switch_tab", "page_id": 77}, sandpit.NotFound)
	k.refused("sandbox_browser", fields{"action": "go_home"}, sandpit.Invalid)
	do(fields{"action": "close_tab", "page_id": 1}, "Closed page 1", "about:blank")
}

func testAddresses(k kit) {
	k.Helper()
	for _, bad := range []string{"javascript:alert(1)", "chrome://version", "view-source:" + shop, "ftp://127.0.0.1/", "about:config", "blob:x", "chrome-untrusted://x"} {
		k.refused("browser_open", fields{"url": bad}, sandpit.PermissionDenied)
	}
	for _, bad := range []string{"", "http://", "http://a b/", "file://host/x", "file:x"} {
		k.refused("browser_open", fields{"url": bad}, sandpit.Invalid)
	}
	k.refused("browser_open", fields{"url": "http://127.0.0.1:1/"}, sandpit.Unavailable, "ERR_UNSAFE_PORT")
	k.refused("browser_open", fields{"url": "http://127.0.0.1:8299/"}, sandpit.Unavailable, "ERR_CONNECTION_REFUSED")
	k.refused("browser_open", fields{"url": "http://sandpit.invalid/"}, sandpit.Unavailable, "open sandpit.invalid")
	k.refused("browser_open", fields{"url": shop + "loop"}, sandpit.Unavailable, "ERR_TOO_MANY_REDIRECTS")
	k.refused("browser_open", fields{"url": shop + "to-file"}, sandpit.Unavailable)
	k.refused("browser_open", fields{"url": shop + "slow", "timeout": 1}, sandpit.Timeout)
	k.refused("browser_open", fields{"url": shop + "download"}, sandpit.Unsupported, "download")
	k.want("browser_open", fields{"url": shop + "none.html"}, "status 404")
	k.want("file_write", fields{"file": "page.html", "content": "<p>a file of the session</p>"})
	k.want("browser_open", fields{"url": "file://" + k.session.Dir() + "/page.html"}, "a file of the session")
	k.refused("browser_open", fields{"url": "file:///none.html"}, sandpit.NotFound)
	k.want("browser_open", fields{"url": "about:blank"}, "the page is empty")
}

// TestBrowserHostile opens pages that attack their reader. The session
// shares its sandbox, and its user is not root, so that Chromium has its own sandbox, too.
func TestBrowserHostile(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes a browser's time")
	}
	box := newShop(t)
	setup := newKit(t, box, tool.SessionOptions{ID: "setup"})
	setup.want("shell_exec", fields{"command": "mkdir -p /sessions/20001 && chown 20001:20001 /sessions/20001 && chmod 700 /sessions/20001 && echo secret > /root/secret.html && echo open > /open.html"})
	k := newKit(t, box, tool.SessionOptions{ID: "hostile", Dir: "/sessions/20001", User: "20001:20001", Confine: true})
	page := func(html string) fields {
		return fields{"url": "data:text/html,<title>hostile</title>" + html, "timeout": 15}
	}

	k.want("browser_open", page("<p>fine"), "fine")
	setup.want("shell_exec", fields{"command": `cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep -c -- '--no-[s]andbox'`}, "0")
	for _, file := range []string{"/open.html", "/root/secret.html", "/sessions/20001/../../open.html"} {
		k.refused("browser_open", fields{"url": "file://" + file}, sandpit.PermissionDenied)
	}
	// Dialogs without end, at once and later.
	k.refused("browser_open", page("<script>for (;;) alert(1)</script>"), sandpit.Unavailable, "too many dialogs")
	k.want("browser_open", page("<p>after dialogs"), "after dialogs")
	// A page that never does anything else any more.
	k.refused("browser_evaluate", fields{"expression": "for (;;);", "timeout": 1}, sandpit.Timeout)
	k.want("browser_open", page("<p>after the loop"), "after the loop")
	nodes := "5000"
	if os.Getenv("SANDPIT_TEST_BROWSER_LONG") != "" {
		nodes = "50000"
		k.want("browser_open", page("<button onclick='for (;;);'>Loop</button>"))
		k.refused("browser_click", fields{"text": "Loop"}, sandpit.Timeout, "was closed")
		k.want("browser_open", page("<p>after the click"), "after the click")
	}
	// Much of everything.
	big := k.want("browser_open", page("<script>for (let i = 0; i < "+nodes+"; i++) { const b = document.createElement('button'); b.textContent = 'b' + i; document.documentElement.append(b) }</script>"), "b0")
	if len(big.Text) > 20_000 {
		t.Errorf("%d bytes of a large page", len(big.Text))
	}
	deep := k.call("browser_open", page("<script>let e = document.documentElement; for (let i = 0; i < "+nodes+"; i++) { const d = document.createElement('div'); e.append(d); e = d }</script>"))
	if deep.Problem != nil && deep.Problem.Code == sandpit.Internal {
		t.Errorf("a deep page: %s", deep.Text)
	}
	k.want("browser_open", page("<p>after much"), "after much")
	k.refused("browser_evaluate", fields{"expression": "'x'.repeat(40 * 1024 * 1024)"}, sandpit.Exhausted)
	if r := k.want("browser_evaluate", fields{"expression": "'y'.repeat(1024 * 1024)"}, "1048576 bytes in total"); len(r.Text) > 40_000 {
		t.Errorf("%d bytes of a value", len(r.Text))
	}
	// A picture of 100 million pixels.
	k.want("browser_open", page("<body style='margin:0'><canvas width=10000 height=10000 style='background:red'></canvas>"))
	shot := k.want("browser_screenshot", fields{"full_page": true})
	head, _, err := image.DecodeConfig(bytes.NewReader(shot.Images[0].Data))
	if err != nil || head.Width*head.Height > 16<<20 || head.Width > 8192 || len(shot.Images[0].Data) > 10<<20 {
		t.Errorf("a picture of %+v, %d bytes, %v", head, len(shot.Images[0].Data), err)
	}
	// Pages that go away, and downloads that were not requested.
	k.want("browser_open", fields{"url": "data:text/html,x", "new_tab": true})
	k.want("browser_evaluate", fields{"expression": "const w = open('about:blank'); setTimeout(() => w.close(), 10); 1"}, "a page was opened")
	k.want("browser_close", nil)
	k.want("browser_open", fields{"url": shop + "second.html"})
	k.want("browser_evaluate", fields{"expression": "for (let i = 0; i < 30; i++) open('about:blank'); 1"}, "a page was opened: 2")
	k.want("browser_tabs", fields{"action": "switch", "page_id": 2}, "* 2")
	k.want("browser_evaluate", fields{"expression": "setTimeout(() => close(), 100); 1"})
	if r := k.call("browser_wait", fields{"seconds": 2}); !strings.Contains(r.Text, "no longer open") && r.Problem == nil {
		t.Errorf("a page that has closed itself: %s", r.Text)
	}
	k.want("browser_open", fields{"url": shop + "second.html"}, "second page")
	k.want("browser_evaluate", fields{"expression": "location.href = '/download'; await new Promise(r => setTimeout(r, 2000))"}, "a download was refused: "+shop+"download")
	k.want("shell_exec", fields{"command": "find / -name 'evil*' -not -path '/proc/*' 2>/dev/null | wc -l"}, "0")
	// A browser that is killed is started again.
	setup.want("shell_exec", fields{"command": "pkill -9 -u 20001 -f remote-debugging-pipe"})
	if r := k.call("browser_text", nil); r.Problem != nil && r.Problem.Code != sandpit.Unavailable {
		t.Errorf("after it was killed: %s", r.Text)
	}
	k.want("browser_open", page("<p>after all"), "after all")
	if err := k.session.Close(); err != nil {
		t.Error(err)
	}
	setup.want("shell_exec", fields{"command": "sleep 1; pgrep -c -u 20001 chrom"}, "0")
}

// TestNoBrowser asks for a browser on a machine without one.
func TestNoBrowser(t *testing.T) {
	t.Parallel()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		testengine.Skip(t, "no busybox: %v", err)
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin", "busybox"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("busybox", filepath.Join(root, "bin", "sh")); err != nil {
		t.Fatal(err)
	}
	k := newKit(t, newBoxOf(t, sandpit.Spec{Image: sandpit.Image(root)}), tool.SessionOptions{})
	k.refused("browser_open", fields{"url": shop}, sandpit.Unsupported, "this image has no browser", "builtin:browser")
	k.refused("sandbox_browser", fields{"action": "get_current_state"}, sandpit.Unsupported)
	testVision(t, k)
}

// testVision looks at pictures. It needs nothing of the image.
func testVision(t *testing.T, k kit) {
	t.Helper()
	wide := image.NewNRGBA(image.Rect(0, 0, 4000, 1000))
	for i := range 1000 {
		wide.Set(i, i, color.NRGBA{255, 0, 0, 255})
	}
	put := func(name string, encode func(*bytes.Buffer) error) {
		t.Helper()
		var b bytes.Buffer
		if err := encode(&b); err != nil {
			t.Fatal(err)
		}
		k.want("file_upload", fields{"path": name, "content": base64.StdEncoding.EncodeToString(b.Bytes())})
	}
	put("wide.png", func(b *bytes.Buffer) error { return png.Encode(b, wide) })
	put("wide.jpg", func(b *bytes.Buffer) error { return jpeg.Encode(b, wide, nil) })
	small := image.NewPaletted(image.Rect(0, 0, 30, 20), color.Palette{color.Transparent, color.Black})
	put("small.gif", func(b *bytes.Buffer) error { return gif.Encode(b, small, nil) })
	put("notes.txt", func(b *bytes.Buffer) error { _, err := b.WriteString("no picture"); return err })
	put("large", func(b *bytes.Buffer) error { _, err := b.Write(make([]byte, 10<<20+1)); return err })
	put("cut.png", func(b *bytes.Buffer) error {
		err := png.Encode(b, wide)
		b.Truncate(b.Len() / 2)
		return err
	})
	// The head of a PNG of 60,000 x 60,000 pixels.
	put("bomb.png", func(b *bytes.Buffer) error {
		err := png.Encode(b, small)
		copy(b.Bytes()[16:], []byte{0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60})
		sum := crc32.ChecksumIEEE(b.Bytes()[12:29])
		binary.BigEndian.PutUint32(b.Bytes()[29:], sum)
		return err
	})
	k.pictured(k.want("sandbox_vision", fields{"action": "see_image", "file_path": "wide.png"}, "4000 x 1000", "scaled to 1920 x 480"), "image/png", 1920, 480)
	k.pictured(k.want("sandbox_vision", fields{"file_path": "wide.jpg"}), "image/jpeg", 1920, 480)
	r := k.want("sandbox_vision", fields{"file_path": "small.gif"})
	k.pictured(r, "image/jpeg", 30, 20)
	white, err := jpeg.Decode(bytes.NewReader(r.Images[0].Data))
	if err != nil {
		t.Fatal(err)
	}
	if red, _, _, _ := white.At(1, 1).RGBA(); red < 0xf000 {
		t.Error("what was transparent is not white")
	}
	k.refused("sandbox_vision", fields{"file_path": "none.png"}, sandpit.NotFound)
	k.refused("sandbox_vision", fields{"file_path": "notes.txt"}, sandpit.Invalid, "not a JPEG, PNG, GIF or WebP")
	k.refused("sandbox_vision", fields{"file_path": "cut.png"}, sandpit.Invalid)
	k.refused("sandbox_vision", fields{"file_path": "large"}, sandpit.Exhausted)
	k.refused("sandbox_vision", fields{"file_path": "bomb.png"}, sandpit.Exhausted, "60000 x 60000")
	k.refused("sandbox_vision", fields{"action": "paint", "file_path": "wide.png"}, sandpit.Invalid)
}

// TestBrowserNames finds the names that others know these tools by.
func TestBrowserNames(t *testing.T) {
	t.Parallel()
	tools, err := tool.New(nil, tool.Browser)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range tools.Tools() {
		names = append(names, d.Name)
	}
	for _, name := range []string{"browser_open", "browser_info", "browser_screenshot", "browser_action", "browser_config", "sandbox_browser", "sandbox_vision"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not in the category: %v", name, names)
		}
	}
	for _, alias := range []string{"browser_navigate", "browser_snapshot", "browser_type", "browser_get_text"} {
		if _, err := tools.Tool(alias); err != nil {
			t.Error(err)
		}
	}
}
