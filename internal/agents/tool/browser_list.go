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

// pageTools bring a page and tell what is on it.
func pageTools(acts, looks Hints) []Tool {
	return []Tool{
		{
			Name: "browser_open", Title: "Open a page", Aliases: []string{"browser_navigate", "browser_goto"}, Hints: acts,
			Description: "Open an address in the sandbox's browser, and tell what is on the page: its text, with numbers for what can be clicked and filled in.",
			function:    newFunction(browserOpen),
		}, {
			Name: "browser_state", Title: "See a page", Aliases: []string{"browser_snapshot"}, Hints: looks,
			Description: "What is on the page as text, with numbers for what can be clicked and filled in, which hold until the page changes; and the open pages.",
			function:    newFunction(browserState),
		}, {
			Name: "browser_screenshot", Title: "Take a picture of a page", Hints: looks,
			Description: "A picture of what the page shows, or of all of it.",
			function:    newFunction(browserScreenshot),
		}, {
			Name: "browser_text", Title: "Read a page", Aliases: []string{"browser_get_text", "browser_content", "browser_get_content"}, Hints: looks,
			Description: "The text or the HTML of the page, or of an element.",
			function:    newFunction(browserText),
		}, {
			Name: "browser_scroll", Title: "Scroll a page", Hints: looks,
			Description: "Scroll the page up or down, or to a text.",
			function:    newFunction(browserScroll),
		}, {
			Name: "browser_wait", Title: "Wait for a page", Hints: looks,
			Description: "Wait until something matches a selector, or until the page has a text, or just some seconds.",
			function:    newFunction(browserWait), synonyms: map[string]string{"timeout": "seconds"},
		},
	}
}

// inputTools do something to a page.
func inputTools(acts Hints) []Tool {
	return []Tool{
		{
			Name: "browser_click", Title: "Click an element", Hints: acts,
			Description: "Click an element of the page: by its number, by a CSS selector, or by its text. It is scrolled to.",
			function:    newFunction(browserClick),
		}, {
			Name: "browser_fill", Title: "Fill in a field", Aliases: []string{"browser_type", "browser_input"}, Hints: acts,
			Description: "Replace what a field of the page holds.",
			function:    newFunction(browserFill),
		}, {
			Name: "browser_select", Title: "Select from a list", Hints: acts,
			Description: "Select an option of a drop-down list by its text, or list the options if none is given.",
			function:    newFunction(browserSelect),
		}, {
			Name: "browser_press", Title: "Press keys", Aliases: []string{"browser_press_key"}, Hints: acts,
			Description: "Press a key, or several at once, where the page's focus is: Enter, Escape, Control+a.",
			function:    newFunction(browserPress),
		}, {
			Name: "browser_evaluate", Title: "Run JavaScript in a page", Hints: acts,
			Description: "Evaluate JavaScript in the page and return its value. Promises are waited for.",
			function:    newFunction(browserEvaluate), synonyms: map[string]string{"script": "expression", "code": "expression"},
		}, {
			Name: "browser_action", Title: "Use mouse and keyboard", Hints: acts,
			Description: "Use the mouse and the keyboard at places of the picture, for what has no number: click, move, drag, scroll, type, press keys.",
			function:    newFunction(browserAction),
		},
	}
}

// windowTools are about the browser and its pages as such.
func windowTools(acts, looks Hints) []Tool {
	return []Tool{
		{
			Name: "browser_back", Title: "Go back", Hints: acts,
			Description: "Go back or forward in the page's history, or load the page anew.",
			function:    newFunction(browserBack),
		}, {
			Name: "browser_tabs", Title: "Open pages", Hints: acts,
			Description: "List the open pages, switch to one, or close one.",
			function:    newFunction(browserTabs),
		}, {
			Name: "browser_config", Title: "Set up the browser", Hints: Hints{Idempotent: true},
			Description: "Set the size of the browser's window, and how it answers questions of pages.",
			function:    newFunction(browserConfig),
		}, {
			Name: "browser_info", Title: "About the browser", Hints: looks,
			Description: "Which browser there is, the size of its window and what is open. It is started if it does not run.",
			function:    newFunction(browserInfo),
		}, {
			Name: "browser_close", Title: "Close the browser", Hints: Hints{Idempotent: true},
			Description: "Close the browser and its pages. Logins are kept; the next call of a browser tool starts it again.",
			function:    newFunction(browserClose),
		},
	}
}
