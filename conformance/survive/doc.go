// Package survive holds a server to its promise that commands survive: connections to
// it are cut, and it is killed, again and again, while many commands run, and each of
// them must arrive whole. It has tests only.
package survive
