// Package browser controls a Chromium in a sandbox, for tools of agents: it opens
// pages, returns their contents, clicks, types, and takes screenshots.
//
// The browser is an ordinary program of the sandbox, with its user's rights and the sandbox's
// network. It is controlled with Chrome's DevTools protocol over its standard streams
// (--remote-debugging-pipe): it does not listen, so neither a page nor another program can
// control it, and it ends with its input.
//
// All data from it is untrusted, because pages are hostile and the browser may be compromised:
// messages, texts and images are bounded and checked. Decisions that a page must not
// influence, such as which element a number means, are made by a script in an isolated
// world (page.js), which sees the page's elements but not its code.
package browser
