package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// docker is a Docker daemon, used through its command line.
type docker struct {
	label string // marks the containers of this run
	image string
}

// openDocker imports a root file system. It fails if no daemon answers.
func openDocker(ctx context.Context, root string) (*docker, error) {
	if _, err := dockerOutput(ctx, "version", "--format", "{{.Server.Version}}"); err != nil {
		return nil, err
	}
	name := "sandpit-bench-" + strconv.Itoa(os.Getpid())
	d := &docker{label: name, image: name + ":latest"}
	if _, err := dockerOutput(ctx, "import", root, d.image); err != nil {
		return nil, err
	}
	return d, nil
}

// Close removes what this run created.
func (d *docker) Close(ctx context.Context) error {
	ids, err := dockerOutput(ctx, "ps", "-aq", "--filter", "label="+d.label)
	if list := strings.Fields(ids); len(list) > 0 {
		_, rmErr := dockerOutput(ctx, append([]string{"rm", "-f"}, list...)...)
		err = errors.Join(err, rmErr)
	}
	_, imageErr := dockerOutput(ctx, "rmi", d.image)
	return errors.Join(err, imageErr)
}

func (d *docker) contestant() contestant {
	return contestant{
		name:  byDocker,
		start: asBox(d.start),
		life: func(ctx context.Context) (life, error) {
			return lifeOf(exec.CommandContext(ctx, "docker", "run", "--rm",
				"--network", "none", "--label", d.label, d.image, "echo", word))
		},
	}
}

func (d *docker) start(ctx context.Context) (*dockerBox, error) {
	id, err := dockerOutput(ctx, "run", "-d", "--network", "none", "--label", d.label, d.image, "sleep", "86400")
	if err != nil {
		return nil, err
	}
	return &dockerBox{id: id}, nil
}

type dockerBox struct{ id string }

func (b *dockerBox) Run(ctx context.Context, args ...string) error {
	_, err := b.Output(ctx, args...)
	return err
}

// Output implements speaker.
func (b *dockerBox) Output(ctx context.Context, args ...string) (string, error) {
	return dockerOutput(ctx, append([]string{"exec", b.id}, args...)...)
}

func (b *dockerBox) CopyIn(ctx context.Context, source, target string) error {
	_, err := dockerOutput(ctx, "cp", source, b.id+":"+target)
	return err
}

func (b *dockerBox) CopyOut(ctx context.Context, source, target string) error {
	_, err := dockerOutput(ctx, "cp", b.id+":"+source, target)
	return err
}

func (b *dockerBox) Destroy(ctx context.Context) error {
	_, err := dockerOutput(ctx, "rm", "-f", b.id)
	return err
}

// pid returns the number of the container's first process on this machine.
func (b *dockerBox) pid(ctx context.Context) (int, error) {
	out, err := dockerOutput(ctx, "inspect", "--format", "{{.State.Pid}}", b.id)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

// dockerOutput runs a docker command and returns what it prints.
func dockerOutput(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "docker", args...).Output()
	if err == nil {
		return strings.TrimSpace(string(out)), nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, lastWords(string(exit.Stderr)))
	}
	return "", fmt.Errorf("docker %s: %w", args[0], err)
}
