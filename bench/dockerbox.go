package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	dockerprovider "github.com/sandpit-dev/sandpit/provider/docker"
)

// openDockerProvider returns the provider for the daemon's containers, with its files in dir. The
// guest is the engine's executable if this program does not include the small guest.
func openDockerProvider(ctx context.Context, dir, engine string) (*dockerprovider.Provider, error) {
	host, err := dockerOutput(ctx, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "records"), 0o700); err != nil {
		return nil, err
	}
	guest := engine
	if smallGuest() {
		guest = ""
	}
	return dockerprovider.New(testoptions.Docker(dockerprovider.Options{
		Endpoint: dockerprovider.Endpoint{Host: host}, StateDir: filepath.Join(dir, "records"), Guest: guest,
	}))
}

// newSandpitDocker returns sandpit on the same daemon and image as docker.
func newSandpitDocker(p sandpit.Provider, d *docker) contestant {
	return newSandpit(bySandpitDocker, p, d.image)
}
