# Two replicas of the server on a Nomad cluster, 1.8 or later. Bots run as jobs of the same cluster (provider
# `nomad`). PostgreSQL is not part of this job.
#
#   nomad var put nomad/jobs/greenroom database=postgres://… admin_token=… nomad_token=…
#   nomad job run -var image=registry.example.com/greenroom:0.1.0 greenroom.nomad.hcl

variable "image" {
  type        = string
  description = "the image of deploy/Dockerfile, with a tag"
}

variable "public_url" {
  type        = string
  description = "where bots, people and programs reach the server"
  default     = "https://greenroom.example.com"
}

variable "bot_image" {
  type        = string
  description = "the image of the bots, with the agent in it"
  default     = "registry.example.com/meet-bot:1"
}

job "greenroom" {
  type = "service"

  group "server" {
    count = 2

    # A replica that starts while another stops takes over its work. One at a time.
    update {
      max_parallel     = 1
      health_check     = "checks"
      min_healthy_time = "10s"
      healthy_deadline = "3m"
      auto_revert      = true
    }

    # Replicas on one machine would end together.
    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    network {
      port "http" {
        to = 7700
      }
    }

    service {
      name     = "greenroom"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/readyz"
        interval = "5s"
        timeout  = "3s"
      }
    }

    restart {
      attempts = 10
      interval = "5m"
      delay    = "2s"
      mode     = "delay"
    }

    task "greenroom" {
      driver = "docker"
      # The image's own user.
      user         = "65532"
      kill_timeout = "15s"

      config {
        image              = var.image
        ports              = ["http"]
        readonly_rootfs    = true
        cap_drop           = ["all"]
        security_opt       = ["no-new-privileges"]
        mounts             = [{ type = "tmpfs", target = "/data", readonly = false, tmpfs_options = { size = 16777216 } }]
        image_pull_timeout = "10m"
      }

      env {
        GREENROOM_CONFIG     = "${NOMAD_TASK_DIR}/greenroom.toml"
        GREENROOM_PUBLIC_URL = var.public_url
      }

      template {
        destination = "local/greenroom.toml"
        change_mode = "restart"
        data        = <<-END
          [[pool]]
          name = "google-meet"
          platform = "google_meet"
          provider = "nomad"
          max_slots = 40
          min_idle = 4
          standby = "running"

          [pool.nomad]
          address = "http://{{ env "attr.unique.network.ip-address" }}:4646"
          image = "${var.bot_image}"
          cpu = 1000
          memory = 2000
        END
      }

      template {
        destination = "secrets/greenroom.env"
        env         = true
        change_mode = "restart"
        data        = <<-END
          {{ with nomadVar "nomad/jobs/greenroom" }}
          GREENROOM_DATABASE={{ .database }}
          GREENROOM_ADMIN_TOKEN={{ .admin_token }}
          GREENROOM_POOL__0__NOMAD__TOKEN={{ .nomad_token }}
          {{ end }}
        END
      }

      resources {
        cpu    = 1000
        memory = 512
      }
    }
  }
}
