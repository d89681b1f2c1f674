package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

// A sandbox for one piece of work, which is gone at the end however that went. The
// server and its key are those that the environment names.
func ExampleClient_WithSandbox() {
	c, err := client.FromEnv()
	if err != nil {
		slog.Error("configure", slog.Any("error", err)) //nolint:sloglint // an example
		return
	}
	defer c.Close()
	err = c.WithSandbox(context.Background(), client.CreateRequest{}, func(ctx context.Context, s *client.Sandbox) error {
		res, err := s.Run(ctx, "echo hello")
		if err != nil {
			return err
		}
		fmt.Println(res.ExitCode, res.Stdout)
		return nil
	})
	if err != nil {
		fmt.Println(err, sandpit.HintOf(err))
	}
}

// Files and processes inside are those of a sandpit.Guest.
func ExampleSandbox_Guest() {
	ctx := context.Background()
	c, err := client.New(client.Options{URL: "https://sandpit.example.com", Key: "e2b_..."})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	s, err := c.Sandboxes.Create(ctx, client.CreateRequest{
		Spec: sandpit.Spec{Image: "python:3.12-slim"}, Timeout: time.Hour, OnTimeout: sandpit.ActionPause,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = s.Guest().WriteFile(ctx, "", "/workspace/job.py", strings.NewReader("print(42)"), sandpit.WriteOptions{})
	if errors.Is(err, sandpit.Gone) {
		fmt.Println("another client has removed it:", err)
	}
}

// Follow what happens on a server until something in particular does.
func ExampleEvents_Follow() {
	c, err := client.FromEnv()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	done := errors.New("done")
	err = c.Events.Follow(context.Background(), client.EventFilter{Action: "create"}, func(e api.Event) error {
		fmt.Println(e.At, e.Sandbox, e.Actor)
		return done
	})
	fmt.Println(errors.Is(err, done))
}
