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

// victimVariable contains the victim as JSON for its process.
const victimVariable = "SANDPIT_BENCH_VICTIM"

// victim is an owner that is measured beside others. Its client is a separate process with priority:
// real clients have their own machines, and would otherwise wait for the storms on this one.
type victim struct {
	URL     string `json:"url"`
	Key     string `json:"key"`
	Samples int    `json:"samples"`
}

// victimPatience is the timeout of each operation of the victim. A longer one counts as that long.
const victimPatience = 20 * time.Second

// measureVictim measures the operations of the victim.
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
	cmd := exec.CommandContext(ctx, "nice", "-n", "-20", self) // which runs without priority where that is not allowed
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

// beVictim measures in the process of the victim, and prints the samples.
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
	const maxTimeouts = 5 // more add nothing
	for late := 0; late < maxTimeouts && len(samples[metricNeighbourCreate]) < v.Samples; {
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

// oneLife creates a sandbox, runs a command in it and deletes it, and returns how long each took. The
// result ends with the operation that timed out.
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
