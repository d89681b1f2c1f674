// Package survive checks that commands survive: it cuts connections to a server and kills it repeatedly
// while many commands run, and the output of each must arrive completely. It contains only tests.
package survive
