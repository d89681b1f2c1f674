// Package deploy holds what runs a server and looks after it: a unit of systemd, a
// container, rules for Prometheus, a dashboard. Its tests load each of them.
package deploy
