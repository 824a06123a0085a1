#!/usr/bin/env python3
"""Writes the schema of the pod template in the CRD: crates/api/src/crd/pod_template.json.

The script turns the OpenAPI document in Kubernetes' Go module into a structural schema. It resolves references, leaves
out descriptions and Go's zero values, and keeps the keys of lists. To move to another version of Kubernetes, change
VERSION, run `python3 scripts/pod_template.py && make manifests`, and review the difference.
"""

import json
import subprocess
from pathlib import Path

VERSION = "v1.36.3"
DOCUMENT = "api/openapi-spec/v3/api__v1_openapi.json"
OUTPUT = Path(__file__).parent.parent / "crates/api/src/crd/pod_template.json"

KEPT = [
    "type", "format", "enum", "required", "properties", "items", "additionalProperties",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type",
]
# The fields of metadata that users write into a template. The other fields belong to existing objects.
METADATA = ["annotations", "finalizers", "labels", "name", "namespace"]
# The fields that Kubernetes refuses in a new pod.
REFUSED = {"io.k8s.api.core.v1.PodSpec": ["ephemeralContainers"]}
# The fields that a template may omit: Stagecoach adds the trainer's container itself.
NOT_REQUIRED = {"io.k8s.api.core.v1.PodSpec": ["containers"]}
# The grammar in the documentation of resource.Quantity.
NUMBER = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
QUANTITY = rf"^[-+]?{NUMBER}([KMGTPE]i|[numkMGTPE]|[eE][-+]?{NUMBER})?$"


def main():
    module = subprocess.run(
        ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{VERSION}"],
        capture_output=True, text=True, check=True, cwd="/",
    )
    schemas = json.loads(Path(json.loads(module.stdout)["Dir"], DOCUMENT).read_text())["components"]["schemas"]
    template = structural(schemas, {"$ref": "io.k8s.api.core.v1.PodTemplateSpec"})
    OUTPUT.write_text(json.dumps(template, indent=1, sort_keys=True) + "\n")
    print(f"{OUTPUT}: {len(json.dumps(template, separators=(',', ':')))} bytes without spaces")


def structural(schemas, schema):
    """Returns the schema with its references resolved, and only with the keywords that a CRD's schema may have."""
    for reference in [schema, *schema.get("allOf", [])]:
        if "$ref" in reference:
            name = reference["$ref"].split("/")[-1]
            beside = {key: schema[key] for key in KEPT if key in schema}
            return structural(schemas, adjusted(name, schemas[name]) | beside)
    types = {choice["type"] for choice in schema.get("oneOf", [])}
    if schema.get("format") == "int-or-string":
        return {"x-kubernetes-int-or-string": True}
    if types == {"string", "number"}:
        return {"x-kubernetes-int-or-string": True, "pattern": QUANTITY}

    result = {key: schema[key] for key in KEPT if key in schema}
    if "properties" in schema:
        result["properties"] = {name: structural(schemas, below) for name, below in schema["properties"].items()}
    for key in ["items", "additionalProperties"]:
        if key in schema:
            result[key] = structural(schemas, schema[key])
    # A key of a list must be required or have a default.
    for key in schema.get("x-kubernetes-list-map-keys", []):
        item = result["items"]
        if key not in item.get("required", []):
            item["properties"][key]["default"] = original_default(schemas, schema["items"], key)
    return result


def adjusted(name, schema):
    """Returns the schema of a type without the fields that have no meaning in a template."""
    properties = schema.get("properties", {})
    if name.endswith(".ObjectMeta"):
        properties = {key: properties[key] for key in METADATA}
    properties = {key: below for key, below in properties.items() if key not in REFUSED.get(name, [])}
    required = [key for key in schema.get("required", []) if key not in NOT_REQUIRED.get(name, [])]
    rest = {key: value for key, value in schema.items() if key not in ("properties", "required")}
    return rest | ({"properties": properties} if properties else {}) | ({"required": required} if required else {})


def original_default(schemas, items, key):
    reference = items.get("$ref") or items["allOf"][0]["$ref"]
    return schemas[reference.split("/")[-1]]["properties"][key]["default"]


if __name__ == "__main__":
    main()
