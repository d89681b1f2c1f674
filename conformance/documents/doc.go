// Package documents holds no code: its tests run the examples of README.md and docs/ against a
// real server, as their readers would, and compare the figures of the pages with the program.
package documents
