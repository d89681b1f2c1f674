// Package deploy contains what runs and monitors a server: a systemd unit, a container, rules for
// Prometheus, a dashboard. Its tests load each of them.
package deploy
