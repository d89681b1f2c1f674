// Package documents holds no code: its tests run the examples of docs/ against a real server,
// as their readers would.
package documents
