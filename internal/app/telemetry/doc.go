// Package telemetry reports what a server does to its operators: a log, metrics for
// Prometheus, and spans for OpenTelemetry. It has no global state, and its failures never
// affect what it observes.
package telemetry
