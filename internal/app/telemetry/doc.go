// Package telemetry tells those who run a server what it does: a log, figures for
// Prometheus, and spans for OpenTelemetry. Nothing here is global, and nothing fails
// what it watches.
package telemetry
