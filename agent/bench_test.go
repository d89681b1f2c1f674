package agent_test

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
)

// BenchmarkStep measures steps whose model and tool take no time.
func BenchmarkStep(b *testing.B) {
	result := strings.Repeat("line of a result\n", 300)
	for b.Loop() {
		one, err := agent.New(agent.Options{
			Model: &testModel{turns: []turn{count()}, window: 200_000}, Transcript: io.Discard, OnEvent: func(agent.Event) {},
			Open: func(context.Context) (agent.Sandbox, error) {
				return agent.Sandbox{}, sandpit.Errorf(sandpit.Unsupported, "no sandbox")
			},
			More: []agent.Tool{{Name: "echo", Call: func(context.Context, json.RawMessage) (string, error) { return result, nil }}},
		})
		if err != nil {
			b.Fatal(err)
		}
		if o, err := one.Run(b.Context(), "measure"); err != nil || o.Reason != agent.MaxSteps {
			b.Fatal(o, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/agent.DefaultMaxSteps, "µs/step")
}
