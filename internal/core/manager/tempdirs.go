package manager

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/files/tempdir"
)

// The path of a temporary directory is in its sandbox's row before the directory is created, and
// until it is removed, so that no crash leaves an unknown directory.

// checkTempDirs refuses temporary directories that cannot be created. A request must not name their
// location.
func (cr *creator) checkTempDirs(mounts []sandpit.Mount) error {
	for _, mount := range mounts {
		switch {
		case !mount.Temporary:
		case mount.Source != "":
			return sandpit.Errorf(sandpit.Invalid, "mount on %.200q: a temporary directory has no source", mount.Target)
		case cr.o.TempDir == "":
			return sandpit.Errorf(sandpit.Unsupported, "mount on %.200q: no directory for temporary directories is configured", mount.Target)
		}
	}
	return nil
}

// withTempDirs returns a spec with the location of its temporary directories.
func (cr *creator) withTempDirs(s sandpit.Spec) sandpit.Spec {
	if !hasTempDir(s) {
		return s
	}
	s = s.Clone()
	for i, mount := range s.Mounts {
		if mount.Temporary {
			s.Mounts[i].Source = tempdir.Name(cr.o.TempDir, mount.Target)
		}
	}
	return s
}

func hasTempDir(s sandpit.Spec) bool {
	return slices.ContainsFunc(s.Mounts, func(mount sandpit.Mount) bool { return mount.Temporary })
}

// makeTempDirs creates the temporary directories of a sandbox. A recreated sandbox has them
// already, with their files.
func makeTempDirs(s sandpit.Spec) error {
	for _, mount := range s.Mounts {
		if !mount.Temporary {
			continue
		}
		if err := tempdir.Make(mount.Source); err != nil {
			return err
		}
	}
	return nil
}

// removeTempDirs removes the temporary directories of a deleted sandbox, except those to be kept. A
// directory that this process has no permission to remove is reported and left, so that it does not
// prevent the deletion.
func (rm *remover) removeTempDirs(ctx context.Context, rec *sandboxRecord) error {
	for _, mount := range rec.currentRow().Spec.Mounts {
		if !mount.Temporary || mount.Keep {
			continue
		}
		remove := func(ctx context.Context) error { return tempdir.Remove(ctx, mount.Source) }
		_, err := callProvider(ctx, rm.core.loops, rm.core.newCall("remove the temporary directory of sandbox "+string(rec.id)), withoutResult(remove), nil)
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, sandpit.PermissionDenied) {
			rm.log.WarnContext(ctx, "manager: temporary directory not removed", slog.String("sandbox", string(rec.id)),
				slog.String("path", mount.Source), slog.Any("error", err))
			rm.events.Record(Report{
				Actor: actorManager, Action: "remove temporary directory", Sandbox: rec.id,
				Args: map[string]string{"path": cutText(mount.Source, store.MaxName)}, Err: err,
			})
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
