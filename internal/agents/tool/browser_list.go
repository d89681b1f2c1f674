package tool

import "slices"

func browserTools() []Tool {
	acts, looks := Hints{Destructive: true, OpenWorld: true}, Hints{ReadOnly: true, OpenWorld: true}
	tools := slices.Concat(pageTools(acts, looks), inputTools(acts), windowTools(acts, looks), []Tool{sandboxBrowser(), sandboxVision()})
	for i := range tools {
		tools[i].Category, tools[i].Timeout = Browser, browserTimeout
	}
	return tools
}

// pageTools returns the tools that open and read pages.
func pageTools(acts, looks Hints) []Tool {
	return []Tool{
		{
			Name: "browser_open", Title: "Open a page", Aliases: []string{"browser_navigate", "browser_goto"}, Hints: acts,
			Description: "Open an address in the sandbox's browser and return the page's text, with numbers for elements that can be clicked or filled in.",
			function:    newFunction(browserOpen),
		}, {
			Name: "browser_state", Title: "Show a page", Aliases: []string{"browser_snapshot"}, Hints: looks,
			Description: "Return the page's text, with numbers for elements that can be clicked or filled in, and the open pages. Numbers are valid until the page changes.",
			function:    newFunction(browserState),
		}, {
			Name: "browser_screenshot", Title: "Take a screenshot", Hints: looks,
			Description: "Take a screenshot of the visible part of the page, or of the full page.",
			function:    newFunction(browserScreenshot),
		}, {
			Name: "browser_text", Title: "Read a page", Aliases: []string{"browser_get_text", "browser_content", "browser_get_content"}, Hints: looks,
			Description: "Return the text or the HTML of the page or an element.",
			function:    newFunction(browserText),
		}, {
			Name: "browser_scroll", Title: "Scroll a page", Hints: looks,
			Description: "Scroll the page up or down, or to a text.",
			function:    newFunction(browserScroll),
		}, {
			Name: "browser_wait", Title: "Wait for a page", Hints: looks,
			Description: "Wait until a visible element matches a selector, until the page contains a text, or for some seconds.",
			function:    newFunction(browserWait), synonyms: map[string]string{"timeout": "seconds"},
		},
	}
}

// inputTools returns the tools that act on pages.
func inputTools(acts Hints) []Tool {
	return []Tool{
		{
			Name: "browser_click", Title: "Click an element", Hints: acts,
			Description: "Scroll to an element of the page and click it, by its number, by a CSS selector, or by its text.",
			function:    newFunction(browserClick),
		}, {
			Name: "browser_fill", Title: "Fill in a field", Aliases: []string{"browser_type", "browser_input"}, Hints: acts,
			Description: "Replace the text of a field.",
			function:    newFunction(browserFill),
		}, {
			Name: "browser_select", Title: "Select from a list", Hints: acts,
			Description: "Select an option of a drop-down list by its text, or list the options if none is given.",
			function:    newFunction(browserSelect),
		}, {
			Name: "browser_press", Title: "Press keys", Aliases: []string{"browser_press_key"}, Hints: acts,
			Description: "Press a key or a combination at the page's focus: Enter, Escape, Control+a.",
			function:    newFunction(browserPress),
		}, {
			Name: "browser_evaluate", Title: "Run JavaScript in a page", Hints: acts,
			Description: "Evaluate JavaScript in the page and return its value. Promises are awaited.",
			function:    newFunction(browserEvaluate), synonyms: map[string]string{"script": "expression", "code": "expression"},
		}, {
			Name: "browser_action", Title: "Use mouse and keyboard", Hints: acts,
			Description: "Use the mouse and the keyboard at positions of the screenshot, for elements without a number: click, move, drag, scroll, type, press keys.",
			function:    newFunction(browserAction),
		},
	}
}

// windowTools returns the tools that control the browser and its pages.
func windowTools(acts, looks Hints) []Tool {
	return []Tool{
		{
			Name: "browser_back", Title: "Go back", Hints: acts,
			Description: "Go back or forward in the page's history, or reload the page.",
			function:    newFunction(browserBack),
		}, {
			Name: "browser_tabs", Title: "Open pages", Hints: acts,
			Description: "List the open pages, switch to one, or close one.",
			function:    newFunction(browserTabs),
		}, {
			Name: "browser_config", Title: "Set up the browser", Hints: Hints{Idempotent: true},
			Description: "Set the size of the browser's window, and whether dialogs of pages are accepted.",
			function:    newFunction(browserConfig),
		}, {
			Name: "browser_info", Title: "About the browser", Hints: looks,
			Description: "Return the browser's version, the size of its window and the open pages. Starts the browser if necessary.",
			function:    newFunction(browserInfo),
		}, {
			Name: "browser_close", Title: "Close the browser", Hints: Hints{Idempotent: true},
			Description: "Close the browser and its pages. Logins are kept; the next call of a browser tool restarts it.",
			function:    newFunction(browserClose),
		},
	}
}
