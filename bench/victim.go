package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// victimVariable holds a victim as JSON for the process that is one.
const victimVariable = "SANDPIT_BENCH_VICTIM"

// victim is an owner who is measured beside others. Its client is a process of its own, with
// priority: clients have machines of their own, and would else be measured as waiting for
// those that storm on this one.
type victim struct {
	URL     string `json:"url"`
	Key     string `json:"key"`
	Samples int    `json:"samples"`
}

// victimPatience is how long each thing that the victim does may take. What takes longer
// counts as that long.
const victimPatience = 20 * time.Second

// measureVictim takes samples of what the victim does.
func (k *kit) measureVictim(ctx context.Context, v victim, beside string) error {
	k.note("an owner beside a neighbour: %s", beside)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "nice", "-n", "-20", self) // which goes on where that is not allowed
	cmd.Env = append(cmd.Environ(), victimVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("measure the victim: %w", err)
	}
	var samples map[string][]float64
	if err := json.Unmarshal(out, &samples); err != nil {
		return fmt.Errorf("read what the victim measured: %w", err)
	}
	for metric, list := range samples {
		k.report.add(result{Metric: metric, Contestant: beside, Unit: unitMS, stats: summarize(list)})
	}
	return nil
}

// beVictim measures in the process of the victim, and puts the samples out.
func beVictim(ctx context.Context, text string, stdout io.Writer) error {
	var v victim
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return fmt.Errorf("read %s: %w", victimVariable, err)
	}
	c, err := client.New(client.Options{URL: v.URL, Key: v.Key})
	if err != nil {
		return err
	}
	defer c.Close()
	samples := make(map[string][]float64)
	const enough = 5 // it is no use to wait for more
	for late := 0; late < enough && len(samples[metricNeighbourCreate]) < v.Samples; {
		took, err := oneLife(ctx, c)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			late++
		} else if err != nil {
			return withHint(err)
		}
		for metric, d := range took {
			samples[metric] = append(samples[metric], ms(d))
		}
	}
	return json.NewEncoder(stdout).Encode(samples)
}

// oneLife has the victim create a sandbox, run a command in it and delete it, and returns
// how long each took. What came too late is the last of them.
func oneLife(ctx context.Context, c *client.Client) (map[string]time.Duration, error) {
	took := make(map[string]time.Duration)
	timed := func(metric string, do func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, victimPatience)
		defer cancel()
		began := time.Now()
		err := do(ctx)
		took[metric] = time.Since(began)
		return err
	}
	var box *client.Sandbox
	err := timed(metricNeighbourCreate, func(ctx context.Context) (err error) {
		box, err = c.Sandboxes.Create(ctx, client.CreateRequest{Spec: sandpit.Spec{Image: neighbourImage}})
		return err
	})
	if err != nil {
		return took, err
	}
	err = timed(metricNeighbourExec, func(ctx context.Context) error {
		_, err := box.RunWith(ctx, client.RunOptions{}, "true")
		return err
	})
	return took, errors.Join(err, timed(metricNeighbourDelete, box.Delete))
}
