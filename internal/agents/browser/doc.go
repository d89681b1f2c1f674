// Package browser drives a Chromium inside a sandbox, for tools of agents: it opens
// pages, tells what is on them, clicks, types, and takes pictures.
//
// The browser is a program of the sandbox like any other, with the rights of the user
// who runs it and the sandbox's network. It is spoken to in Chrome's DevTools protocol
// over its input and output (--remote-debugging-pipe): nothing listens, so no page and no
// other program can drive it, and it ends when its input does.
//
// All that comes from it is hostile, for pages are, and so may be the browser itself:
// messages, texts and pictures are bounded and checked here. What a page must not
// influence, such as which element a number stands for, is worked out by a script of
// ours in a world of its own (page.js), which sees the page's elements but not the page's
// code.
package browser
