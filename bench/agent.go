package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
)

const (
	// agentSteps is the number of steps of a measured task, and agentsAtOnce the number of agents in
	// one process.
	agentSteps   = 20
	agentsAtOnce = 50
	// agentResult is the size of each result, about that of a source file.
	agentResult = 5_000
)

// agents measures what the loop of an agent takes beside its model and its tools, which take no time
// here: for each step of one agent, and the memory of many agents in one process.
func (k *kit) agents(ctx context.Context) error {
	if !k.o.wants(nameAgent) {
		return nil
	}
	list := series{kit: k, n: k.o.samples(50), metrics: []metric{{metricAgentStep, unitMS}}}
	list.add(bySandpit, func() ([]float64, error) {
		one, err := k.newAgent(0)
		if err != nil {
			return nil, err
		}
		took, err := timed(func() error { return one.runTask(ctx) })
		return []float64{ms(took) / agentSteps}, errors.Join(err, one.close(ctx))
	})
	return errors.Join(list.run(ctx), k.manyAgents(ctx))
}

// manyAgents runs agents at once and measures the memory that they hold at their end.
func (k *kit) manyAgents(ctx context.Context) error {
	before := heapMB()
	running := make([]*measuredAgent, agentsAtOnce)
	errs := make([]error, agentsAtOnce)
	begun := time.Now()
	var group sync.WaitGroup
	for i := range running {
		group.Go(func() {
			if running[i], errs[i] = k.newAgent(i); errs[i] == nil {
				errs[i] = running[i].runTask(ctx)
			}
		})
	}
	group.Wait()
	took := time.Since(begun)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	held := heapMB() - before
	for _, one := range running {
		errs = append(errs, one.close(ctx))
	}
	k.report.add(
		single(fmt.Sprintf("%d agents of %d steps at once, all", agentsAtOnce, agentSteps), bySandpit, unitMS, ms(took)),
		single(fmt.Sprintf(metricAgentMemory, agentsAtOnce, agentSteps), bySandpit, unitMB, held))
	return errors.Join(errs...)
}

// heapMB returns the memory that this process uses, in MB, without what is free.
func heapMB() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc+m.StackInuse) / 1e6
}

// measuredAgent is an agent with a transcript in a file.
type measuredAgent struct {
	*agent.Agent

	transcript *os.File
}

func (k *kit) newAgent(number int) (*measuredAgent, error) {
	f, err := os.Create(filepath.Join(k.dir, fmt.Sprintf("agent-%d.jsonl", number)))
	if err != nil {
		return nil, err
	}
	result := strings.Repeat("line of a result\n", agentResult/17)
	one, err := agent.New(agent.Options{
		Model: &quickModel{}, MaxSteps: agentSteps, Transcript: f, OnEvent: func(agent.Event) {},
		Open: func(context.Context) (agent.Sandbox, error) {
			return agent.Sandbox{}, sandpit.Errorf(sandpit.Unsupported, "the tools of this measurement need no sandbox")
		},
		More: []agent.Tool{{Name: "read", Description: "read", Call: func(context.Context, json.RawMessage) (string, error) { return result, nil }}},
	})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &measuredAgent{one, f}, nil
}

func (a *measuredAgent) runTask(ctx context.Context) error {
	o, err := a.Run(ctx, "measure")
	if err == nil && o.Reason != agent.MaxSteps {
		err = fmt.Errorf("the agent ended: %+v", o)
	}
	return err
}

func (a *measuredAgent) close(ctx context.Context) error {
	return errors.Join(a.Close(ctx), a.transcript.Close())
}

// quickModel calls a tool, with other arguments each time.
type quickModel struct{ n int }

func (m *quickModel) Name() string { return "quick" }
func (m *quickModel) Window() int  { return 200_000 }

func (m *quickModel) Generate(_ context.Context, _ model.Request, onDelta func(model.Delta)) (model.Response, error) {
	m.n++
	onDelta(model.Delta{Text: "I read."})
	return model.Response{
		Message: model.Message{Text: "I read.", Calls: []model.ToolCall{{ID: strconv.Itoa(m.n), Name: "read", Arguments: fmt.Sprintf(`{"line":%d}`, m.n)}}},
		Stop:    model.StopTools, Usage: model.Usage{Input: 1000, Output: 20},
	}, nil
}
