package toolbox

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
)

// TestChartMemory leaves out a chart whose values take more memory than there is.
func TestChartMemory(t *testing.T) {
	t.Parallel()
	d := &drawing{account: memory.NewBudget(memory.Options{Total: 64 << 20}).OpenRequest("alice")}
	for chart, want := range map[string]int{`{"a":[` + strings.Repeat("0,", 1<<18) + `0]}`: 0, `{"title":"x"}`: 1} {
		d.charts = nil
		if d.addChart(interpreter.Result{Chart: json.RawMessage(chart)}); len(d.charts) != want {
			t.Errorf("%.20s: %d charts, want %d", chart, len(d.charts), want)
		}
	}
}
